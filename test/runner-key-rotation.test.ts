import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { isAppError } from '#kernel'
import type { RunnerLink } from '#contracts/runner'
import { tenantHeader } from '#contracts/wire/runner'
import { createPeers, signedBy } from '#kit'
import { testEnvelope } from '#testing'
import { createSigner } from '../plugins/auth/signing/signer.ts'
import { createRemoteRunner, runnerPeers } from '../plugins/fleet/remote-runner.ts'
import { bootRole, type Started } from './e2e/roles.ts'
import { frontDoor } from './front-door.ts'

interface Keys {
  readonly current: Buffer
  readonly previous?: Buffer
}

const { profile } = testEnvelope({ profile: { model: 'builtin/demo', tools: ['calculate'] } })

const orders = [
  ['sidecar', 'runner', 'linked', 'plain'],
  ['runner', 'linked', 'plain', 'sidecar'],
] as const
type Name = (typeof orders)[number][number]

/** A conductor's way to its runner, with the keys that it was started with. */
function conductor(url: string, { current, previous }: Keys, links: boolean) {
  const keys = { current, ...(previous ? { previous } : {}) }
  const signer = createSigner({ family: 'runner', ...keys, kv: undefined as never, onRefused() {} })
  const peers = createPeers({ ...runnerPeers(), identity: signedBy(signer, tenantHeader), links })
  return { runner: createRemoteRunner(url, peers.at(url)), end: () => peers.close() }
}

/** What a runner that is being replaced answers, or leaves unanswered; a conductor asks another one. None of it is about keys. */
const replaced = new Set(['runner_draining', 'sidecar_draining', 'runner_unreachable', 'sidecar_unreachable'])

/** One run in a session of its own, which uses a tool; returns its last line. */
async function run(runner: RunnerLink, isOver = (): boolean => false): Promise<string> {
  const sessionId = `sess-0a1b2c3d-${randomUUID().slice(0, 8)}`
  const order = { prompt: 'What is 17% of 2310?', firstSeq: 1, timeoutMs: 30_000, create: { profile } }
  for (;;) {
    try {
      let all = ''
      const lines = runner.execute('acme', { ...order, runId: `run_${randomUUID()}`, sessionId }, never)
      for await (const chunk of lines) all += chunk.toString()
      return all.trimEnd().split('\n').at(-1)!
    } catch (error) {
      if (!isAppError(error) || !replaced.has(error.code) || isOver()) throw error
      // What is refused without asking anybody would be asked again for ever, and nothing else would get its turn.
      await turn()
    }
  }
}
const never = new AbortController().signal

test('the keys of runners and sidecars rotate without one failed run, in whatever order conductors, runner and sidecar are restarted', async (t) => {
  const [toRunner, toSidecar] = [await frontDoor(t), await frontDoor(t)]
  const booted = new Map<Name, Started>()
  const conductors = new Map<Name, ReturnType<typeof conductor>>()
  let over = false
  t.after(async () => {
    // Whoever talks does not go on with runners that are gone, whatever ended this test.
    over = true
    for (const { end } of conductors.values()) await end()
    for (const { end } of booted.values()) await end()
  })
  const start = async (name: Name, keys: Keys): Promise<void> => {
    if (name === 'linked' || name === 'plain') {
      const before = conductors.get(name)
      conductors.set(name, conductor(toRunner.url, keys, name === 'linked'))
      // What it has begun it ends: a conductor that stops hands its runs over.
      if (before) await Promise.allSettled(under.get(name) ?? [])
      return before?.end()
    }
    const before = booted.get(name)
    const env = {
      RUNNER_SIGNING_KEY_CURRENT: keys.current.toString('base64'),
      ...(keys.previous ? { RUNNER_SIGNING_KEY_PREVIOUS: keys.previous.toString('base64') } : {}),
      ...(name === 'runner'
        ? { RUNNER_PORT: '0', AGENT_ORC_WORKER_PORT: '0', SIDECAR_URL: toSidecar.url }
        : { PORT: '0' }),
      LOG_LEVEL: 'warn',
    }
    const started = await bootRole(name, { AGENT_ORC_OPERATIONS_PORT: '0', ...env })
    booted.set(name, started)
    const door = name === 'runner' ? toRunner : toSidecar
    door.target = started.urls[name]!
    await before?.end()
  }

  /** Runs under way, by the conductor that began them. */
  const under = new Map<Name, Set<Promise<void>>>()
  const failures: string[] = []
  let ended = 0
  const talk = async (name: Name): Promise<void> => {
    while (!over && failures.length === 0) {
      const one = run(conductors.get(name)!.runner, () => over).then(
        (last) => void (/"type":"result".*392\.7/.test(last) || failures.push(last)),
        (error: unknown) => void failures.push(String(error)),
      )
      const all = under.get(name) ?? new Set()
      under.set(name, all.add(one))
      await one
      all.delete(one)
      ended++
    }
  }
  const aWhile = async (): Promise<void> => {
    for (const enough = ended + 8; ended < enough && failures.length === 0;)
      await new Promise((resolve) => setTimeout(resolve, 5))
  }

  let keys: Keys = { current: randomBytes(32) }
  for (const name of orders[0]) await start(name, keys)
  const talking = Promise.all([talk('linked'), talk('plain'), talk('linked'), talk('plain')])
  for (const [round, order] of orders.entries()) {
    const next = randomBytes(32)
    const steps: [readonly Name[], Keys][] = [
      [order, { current: next, previous: keys.current }],
      [orders[(round + 1) % orders.length]!, { current: next }],
    ]
    for (const [names, set] of steps) {
      for (const name of names) {
        await start(name, set)
        await aWhile()
        assert.deepEqual(failures, [], `round ${round}: ${names.join(', ')} up to ${name}`)
      }
    }
    keys = { current: next }
  }
  over = true
  await talking
  assert.deepEqual(failures, [])
  // A conductor that shares no key is refused: all of the above was verified.
  const stranger = conductor(toRunner.url, { current: randomBytes(32) }, false)
  t.after(stranger.end)
  await assert.rejects(run(stranger.runner), {
    code: 'runner_failed',
    message: /RUNNER_SIGNING_KEY_CURRENT must be the same/,
  })
})
