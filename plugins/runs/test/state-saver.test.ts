import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pino } from 'pino'
import type { Claim, CopiedState, RunStore } from '#contracts/run-store'
import type { RunnerLink } from '#contracts/runner'
import { StateSaver } from '../state-saver.ts'
import { eventually } from './stage.ts'

const log = pino({ level: 'silent' })

const claimOf = (sessionId: string, epoch = 1): Claim => ({ tenantId: 'acme', sessionId, runId: 'r', epoch })

function scripted() {
  const exports: { sessionId: string; answer: (state: string | undefined) => void }[] = []
  const saved: string[] = []
  const epoch = { now: 1 }
  const link = {
    hash: 'aaaaaaaa',
    unsaved: async () => [{ tenantId: 'acme', sessionId: 's' }],
    exportState: (_tenant: string, sessionId: string) =>
      new Promise((resolve) => {
        const answer = (state: string | undefined): void =>
          resolve(state === undefined ? undefined : { bytes: Buffer.from(state), contentType: 'application/json' })
        exports.push({ sessionId, answer })
      }),
  } as unknown as RunnerLink
  const store = {
    findSession: async () => ({ epoch: epoch.now }),
    saveState: async (_tenant: string, id: string, bundle: { bytes: Buffer }, of: CopiedState) =>
      void saved.push(`${id}=${bundle.bytes}`, ...(of.epoch === 1 ? [] : [`epoch ${of.epoch}`])),
  } as unknown as RunStore
  return { exports, saved, link, store, epoch }
}

/** Lets what was answered be saved, and the next ones begin. */
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

test('a session that rests is saved once, one that runs again is not, and no more than four are exported at a time', async (t) => {
  // By a clock of its own: on a busy machine ten milliseconds pass between two lines, and a session that was saved rests again.
  t.mock.timers.enable({ apis: ['setTimeout', 'Date'] })
  const { exports, saved, link, store } = scripted()
  const saver = new StateSaver(store, log, undefined, 10)
  for (let i = 0; i < 3; i++) saver.rest(claimOf('s0'), link)
  for (let i = 1; i < 7; i++) saver.rest(claimOf(`s${i}`), link)
  saver.busy('acme', 's1')
  t.mock.timers.tick(10)
  await settled()
  assert.deepEqual(
    exports.map((e) => e.sessionId),
    ['s0', 's2', 's3', 's4'],
  )
  exports[0]!.answer('zero')
  exports[1]!.answer(undefined)
  await settled()
  assert.equal(exports.length, 6)
  for (const e of exports.slice(2)) e.answer('state')
  await saver.drain()
  assert.deepEqual(saved.sort(), ['s0=zero', 's3=state', 's4=state', 's5=state', 's6=state'])
  assert.equal(exports.length, 6)
})

test('an older export never lands after a newer one of the same session', async () => {
  const { exports, saved, link, store } = scripted()
  const saver = new StateSaver(store, log, undefined, 1)
  saver.rest(claimOf('s'), link)
  await eventually('the first export begins', () => exports.length === 1)
  saver.busy('acme', 's')
  saver.rest(claimOf('s'), link)
  const drained = saver.drain()
  assert.equal(exports.length, 1)
  exports[0]!.answer('old')
  await eventually('the second export begins', () => exports.length === 2)
  exports[1]!.answer('new')
  await drained
  assert.deepEqual(saved, ['s=old', 's=new'])
})

test('what another conductor left unsaved is copied as of the claim that was the last before the export began', async () => {
  const { exports, saved, link, store, epoch } = scripted()
  const saver = new StateSaver(store, log, undefined, 1)
  epoch.now = 7
  await saver.evacuate(link)
  await eventually('the export begins', () => exports.length === 1)
  epoch.now = 8
  exports[0]!.answer('left')
  await saver.drain()
  assert.deepEqual(saved, ['s=left', 'epoch 7'])
})
