import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pino } from 'pino'
import { AppError } from '#kernel'
import type { RunStore } from '#contracts/run-store'
import type { ExecuteRun, Fleet, RunnerLink } from '#contracts/runner'
import { RunLinks } from '../links.ts'
import { RunnerStream } from '../runner-stream.ts'
import { StateSaver } from '../state-saver.ts'
import { eventually, profileNamed } from './stage.ts'

const sessionId = 'sess-aaaaaaaa-00000001'
const unreachable = () => new AppError('runner_unreachable', 503, { retryable: true })
const cut = () => new AppError('runner_unreachable', 503)

const without = { mcpServers: undefined, egress: undefined, apps: undefined, skills: undefined, recall: undefined }

interface Behaviour {
  readonly execute?: () => void
  readonly hydrate?: () => void
}

/** Runners that write down what they are asked, chosen in this order. */
function stage(
  behaviours: Record<string, Behaviour>,
  session: { runner?: string; stateRev?: number; created?: boolean },
) {
  const calls: string[] = []
  const links = Object.entries(behaviours).map(
    ([hash, { execute, hydrate }]) =>
      ({
        hash,
        async hydrate(_tenant: string, _id: string, _profile: unknown, bundle?: { bytes: Buffer }, replace?: boolean) {
          calls.push(`${hash} hydrate ${bundle ? String(bundle.bytes) : 'nothing'}${replace ? ', replacing' : ''}`)
          hydrate?.()
        },
        async *execute(_tenant: string, run: ExecuteRun) {
          calls.push(`${hash} execute${run.create ? ', creating' : ''}`)
          execute?.()
          yield Buffer.from('first\n')
        },
      }) as unknown as RunnerLink,
  )
  const { created = false, stateRev = 1, runner } = session
  const choose = ({ without = new Set<string>() }: { without?: ReadonlySet<string> }) => {
    const link = links.find(({ hash }) => !without.has(hash))
    if (!link) throw new AppError('no_runner', 503)
    return link
  }
  const store = { loadState: async () => ({ bytes: Buffer.from('saved'), contentType: 'application/gzip' }) }
  const runners = { place: choose, home: choose, all: () => links, owner: () => links[0] } as unknown as Fleet
  const profile = { ...profileNamed('writer'), runtime: 'runtime_a' }
  const stream = new RunnerStream(
    {
      store: store as unknown as RunStore,
      runners,
      ...without,
      links: new RunLinks(undefined, { warn() {} }),
    },
    {
      claim: { tenantId: 'acme', sessionId, runId: 'r1', epoch: 1 },
      session: { id: sessionId, profile, status: 'running', stateRev, epoch: 1, ...(runner ? { runner } : {}) },
      ...(created ? { placed: links[0]! } : {}),
    },
    new AbortController().signal,
  )
  const body: ExecuteRun = {
    runId: 'r1',
    sessionId,
    prompt: 'hi',
    firstSeq: 2,
    timeoutMs: 1_000,
    ...(created ? { create: { profile } } : {}),
  }
  const open = async (): Promise<string[]> => {
    for await (const bytes of stream.execute(body)) void bytes
    return calls
  }
  return { open, calls, stream }
}

const refusing = (error: () => AppError) => ({
  execute: () => {
    throw error()
  },
})

test('the runner that has the conversation is simply asked; any other is given the newest copy first', async () => {
  assert.deepEqual(await stage({ aaaaaaaa: {} }, {}).open(), ['aaaaaaaa execute'])
  assert.deepEqual(await stage({ bbbbbbbb: {} }, { runner: 'bbbbbbbb' }).open(), ['bbbbbbbb execute'])
  assert.deepEqual(
    await stage({ aaaaaaaa: {} }, { runner: 'bbbbbbbb' }).open(),
    ['aaaaaaaa hydrate saved, replacing', 'aaaaaaaa execute'],
    'its own runner is back, with an old copy',
  )
  assert.deepEqual(await stage({ bbbbbbbb: {} }, { stateRev: 0 }).open(), [
    'bbbbbbbb hydrate nothing, replacing',
    'bbbbbbbb execute',
  ])
})

test('a runner that certainly took nothing is replaced by the next one, which says who has the conversation now', async () => {
  const s = stage({ aaaaaaaa: refusing(unreachable), bbbbbbbb: {} }, {})
  assert.deepEqual(await s.open(), ['aaaaaaaa execute', 'bbbbbbbb hydrate saved, replacing', 'bbbbbbbb execute'])
  assert.equal(s.stream.runner?.hash, 'bbbbbbbb')
  const draining = stage(
    { aaaaaaaa: refusing(() => new AppError('runner_draining', 503, { retryable: true })), bbbbbbbb: {} },
    { created: true },
  )
  assert.deepEqual(await draining.open(), ['aaaaaaaa execute, creating', 'bbbbbbbb execute, creating'])
})

test('a runner that may have begun the run is never replaced: nothing is done twice', async () => {
  const s = stage({ aaaaaaaa: refusing(cut), bbbbbbbb: {} }, {})
  await assert.rejects(s.open(), (e: AppError) => e.code === 'runner_unreachable')
  assert.deepEqual(s.calls, ['aaaaaaaa execute'])
  assert.equal(s.stream.runner, undefined)
})

test('a runner that cannot be given the conversation is replaced too; when nobody can, that is what is said', async () => {
  const failing = () => {
    throw unreachable()
  }
  const s = stage({ bbbbbbbb: { hydrate: failing }, cccccccc: {} }, {})
  assert.deepEqual(await s.open(), [
    'bbbbbbbb hydrate saved, replacing',
    'cccccccc hydrate saved, replacing',
    'cccccccc execute',
  ])
  const none = stage({ bbbbbbbb: { hydrate: failing }, cccccccc: { hydrate: failing } }, {})
  await assert.rejects(none.open(), (e: AppError) => e.code === 'hydration_failed' && e.status === 503)
})

test('what a stopping runner has to itself is saved at once, before what only rests, whoever executed it', async () => {
  const saved: string[] = []
  const store = {
    findSession: async () => ({ epoch: 7 }),
    saveState: async (tenant: string, id: string, _bundle: unknown, of: { runner: string; epoch: number }) => {
      saved.push(`${tenant} ${id} of ${of.runner} at ${of.epoch}`)
      return 1
    },
  } as unknown as RunStore
  const link = {
    hash: 'aaaaaaaa',
    unsaved: async () => [{ tenantId: 'globex', sessionId: 's2' }],
    exportState: async () => ({ bytes: Buffer.from('x'), contentType: 'application/json' }),
  } as unknown as RunnerLink
  const saver = new StateSaver(store, pino({ level: 'silent' }), undefined, 3_600_000)
  saver.rest({ tenantId: 'acme', sessionId: 's1', runId: 'r', epoch: 3 }, link)
  await saver.evacuate(link)
  await eventually('it is saved', () => saved.length === 1)
  assert.deepEqual(saved, ['globex s2 of aaaaaaaa at 7'])
  await saver.evacuate({ ...link, unsaved: async () => Promise.reject(new Error('gone')) } as unknown as RunnerLink)
  await saver.drain()
  assert.deepEqual(saved, ['globex s2 of aaaaaaaa at 7', 'acme s1 of aaaaaaaa at 3'])
})

test('when all runners lack their sidecars these are being restarted: the runners are asked again', async () => {
  let refusals = 3
  const restarting = () => {
    if (refusals-- > 0) throw new AppError('sidecar_unreachable', 503, { retryable: true })
  }
  const one = stage({ aaaaaaaa: { execute: restarting } }, { created: true })
  assert.deepEqual(
    await one.open(),
    Array.from({ length: 4 }, () => 'aaaaaaaa execute, creating'),
  )
  refusals = 3
  const two = stage({ aaaaaaaa: { execute: restarting }, bbbbbbbb: { execute: restarting } }, { created: true })
  assert.equal((await two.open()).at(-1), 'bbbbbbbb execute, creating')
  refusals = 3
  const restored = stage({ bbbbbbbb: { hydrate: restarting } }, {})
  assert.equal((await restored.open()).at(-1), 'bbbbbbbb execute')
})

test('a run that was announced waits for a runner that can take it; one that was not is refused at once', async () => {
  let refusals = 2
  const draining = () => {
    if (refusals-- > 0) throw new AppError('runner_draining', 503, { retryable: true })
  }
  const told = stage({ aaaaaaaa: { execute: draining } }, { created: true })
  told.stream.announced = true
  assert.equal((await told.open()).length, 3)
  refusals = 1
  const untold = stage({ aaaaaaaa: { execute: draining } }, { created: true })
  await assert.rejects(untold.open(), (e: AppError) => e.code === 'runner_draining')
  assert.equal(untold.calls.length, 1)
})
