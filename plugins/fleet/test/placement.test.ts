import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import type { AppError } from '#kernel'
import type { ExecuteRun, Fleet } from '#contracts/runner'
import { probeAll, type Scripted, scripted, scriptedFleet } from './scripted.ts'

const hashes = ['00000001', '00000002', '00000003', '00000004']

async function fleetOf(...runners: Scripted[]) {
  const fleet = scriptedFleet(...runners)
  await probeAll(fleet)
  return { fleet, probe: () => probeAll(fleet) }
}
const placed = (fleet: Fleet, times = 8, order: Partial<Parameters<Fleet['place']>[0]> = {}): string[] =>
  [...new Set(Array.from({ length: times }, () => fleet.place({ runtime: 'general', ...order }).hash))].toSorted()
const refusal = (act: () => unknown): AppError => {
  try {
    act()
  } catch (error) {
    return error as AppError
  }
  return assert.fail('nothing was refused')
}

test('a session goes where the fewest runs are under way, other conductors included; equals take turns', async () => {
  const [a, b, c] = hashes.map((hash) => scripted(hash))
  a!.info = { activeRuns: 3 }
  b!.info = { activeRuns: 1 }
  c!.info = { activeRuns: 1 }
  const { fleet, probe } = await fleetOf(a!, b!, c!)
  assert.deepEqual(placed(fleet), ['00000002', '00000003'])
  a!.info = { activeRuns: 0 }
  await probe()
  assert.deepEqual(placed(fleet), ['00000001'])
})

test('what this conductor sends counts at once, and is not counted again when the runner reports it', async () => {
  const [a, b] = [scripted('00000001'), scripted('00000002')]
  a.info = { activeRuns: 0 }
  b.info = { activeRuns: 2 }
  const { fleet, probe } = await fleetOf(a, b)
  const stop = new AbortController()
  const run = { runId: 'r', sessionId: 's', prompt: 'x', firstSeq: 1, timeoutMs: 1 } as ExecuteRun
  const streams = [0, 1, 2].map(() => {
    const stream = fleet.all()[0]!.execute('acme', run, stop.signal)[Symbol.asyncIterator]()
    return { stream, first: stream.next() }
  })
  await Promise.all(streams.map(({ first }) => first))
  assert.equal(fleet.members()[0]!.load, 3)
  assert.deepEqual(placed(fleet), ['00000002'])
  a.info = { activeRuns: 4 }
  await probe()
  assert.equal(fleet.members()[0]!.load, 4)
  stop.abort()
  await Promise.all(streams.map(({ stream }) => stream.next()))
  assert.equal(fleet.members()[0]!.load, 1)
})

test('a runner that cannot say what it can run is only taken when none certainly can', async () => {
  const [all, some, none] = hashes.map((hash) => scripted(hash))
  all!.info = { capabilities: [], capabilitiesKnown: true }
  some!.info = { capabilities: ['runtime_a'] }
  none!.info = { capabilities: [], capabilitiesKnown: false }
  const { fleet, probe } = await fleetOf(all!, some!, none!)
  assert.deepEqual(placed(fleet), ['00000001'])
  assert.deepEqual(placed(fleet, 8, { runtime: 'runtime_a' }), ['00000001', '00000002'])
  all!.away = true
  await probe()
  assert.deepEqual(placed(fleet), ['00000003'])
})

test('a pool is a part of the fleet, by runners and by runtimes', async () => {
  const { fleet } = await fleetOf(...hashes.map((hash) => scripted(hash)))
  assert.deepEqual(placed(fleet, 20, { pool: { runners: hashes.slice(1, 3) } }), hashes.slice(1, 3))
  assert.deepEqual(placed(fleet, 20, { pool: { runtimes: ['general'] } }), hashes)
  const none = refusal(() => fleet.place({ runtime: 'general', pool: { runtimes: ['runtime_a'] } }))
  assert.equal(none.code, 'no_runner')
  assert.match(none.message, /runtime 'general' in its pool/)
})

test('a session with a sandbox goes where its substrate is, also when it moves', async () => {
  const [vm, other, mute, bare] = hashes.map((hash) => scripted(hash))
  vm!.info = { substrates: ['process', 'vm'] }
  other!.info = { substrates: ['process'], defaultSubstrate: 'process' }
  mute!.info = { substratesKnown: false }
  const { fleet, probe } = await fleetOf(vm!, other!, mute!, bare!)
  assert.deepEqual(placed(fleet, 20, { substrate: 'vm' }), ['00000001'])
  assert.deepEqual(placed(fleet, 20, { substrate: 'process' }), ['00000001', '00000002'])
  assert.deepEqual(placed(fleet, 20, { substrate: true }), ['00000002'])
  assert.deepEqual(placed(fleet, 20), hashes)
  const sessionId = 'sess-00000004-0000000a'
  assert.equal(fleet.home({ sessionId, substrate: 'vm', without: new Set(['00000004']) }).hash, '00000001')
  // A runner that does not know its substrates is better than none.
  vm!.away = true
  await probe()
  assert.deepEqual(placed(fleet, 20, { substrate: 'vm' }), ['00000003'])
  mute!.away = true
  await probe()
  const none = refusal(() => fleet.place({ runtime: 'general', substrate: 'vm' }))
  assert.deepEqual([none.code, none.status], ['no_runner', 503])
  assert.equal(
    none.message,
    "No runner can take a session of the runtime 'general' in a sandbox of 'vm' now: 2 live (sandboxes: process), 0 draining, 2 unreachable. Try again.",
  )
})

test('where no runner has a default sandbox the refusal says what to do', async () => {
  const [runner] = [scripted('00000001')]
  runner!.info = { substrates: ['process', 'vm'] }
  const { fleet } = await fleetOf(runner!)
  assert.equal(
    refusal(() => fleet.place({ runtime: 'general', substrate: true })).message,
    "No runner can take a session of the runtime 'general' in a sandbox of its default provider now: 1 live (sandboxes: process, vm), 0 draining, 0 unreachable. Name one as sandbox.provider of the profile.",
  )
})

test('nobody to take a session is a 503 that says what was wanted and what there is', async () => {
  const [a, b, c] = hashes.map((hash) => scripted(hash, { capabilities: ['general'] }))
  b!.info = { capabilities: ['general'], state: 'draining' }
  c!.away = true
  const { fleet } = await fleetOf(a!, b!, c!)
  const error = refusal(() => fleet.place({ runtime: 'runtime_b' }))
  assert.deepEqual([error.code, error.status, error.retryable], ['no_runner', 503, true])
  assert.equal(
    error.message,
    "No runner can take a session of the runtime 'runtime_b' now: 1 live (general), 1 draining, 1 unreachable. Try again.",
  )
})

test('a session goes home, also to a draining runner; when that is away every conductor chooses the same other one', async () => {
  const runners = hashes.map((hash) => scripted(hash))
  const { fleet, probe } = await fleetOf(...runners)
  const sessions = Array.from({ length: 60 }, (_, i) => `sess-00000001-${i.toString(16).padStart(8, '0')}`)
  const homes = (from: Fleet): string[] =>
    sessions.map((sessionId) => from.home({ sessionId, runtime: 'general' }).hash)
  fleet.find('00000001')!.drain(true)
  assert.deepEqual(new Set(homes(fleet)), new Set(['00000001']))
  runners[0]!.away = true
  await probe()
  const elsewhere = homes(fleet)
  assert.deepEqual(new Set(elsewhere), new Set(hashes.slice(1)), 'they spread')
  // Another conductor knows them in another order.
  const other = await fleetOf(...runners.toReversed())
  assert.deepEqual(homes(other.fleet), elsewhere)
  runners[1]!.away = true
  await probe()
  for (const [i, hash] of homes(fleet).entries()) {
    if (elsewhere[i] !== '00000002') assert.equal(hash, elsewhere[i], 'only the sessions of the lost runner move')
  }
})

test('the runner with the newest conversation comes before the one in the id, and never one that was tried in vain', async () => {
  const { fleet } = await fleetOf(...hashes.map((hash) => scripted(hash)))
  const sessionId = 'sess-00000001-0000000a'
  assert.equal(fleet.home({ sessionId }).hash, '00000001')
  assert.equal(fleet.home({ sessionId, runner: '00000003' }).hash, '00000003')
  assert.equal(fleet.owner(sessionId, '00000003')?.hash, '00000003')
  const without = new Set(['00000003'])
  assert.notEqual(fleet.home({ sessionId, runner: '00000003', without }).hash, '00000003')
  fleet.remove(fleet.find('00000003')!)
  assert.notEqual(fleet.home({ sessionId, runner: '00000003' }).hash, '00000003')
  assert.equal(refusal(() => fleet.home({ sessionId, without: new Set(hashes) })).code, 'no_runner')
})

test('a runner that is about to stop is asked for no conversation that is stored, unless there is no other', async () => {
  const [a, b] = [scripted('00000001'), scripted('00000002')]
  const { fleet, probe } = await fleetOf(a, b)
  const sessionId = 'sess-00000001-0000000a'
  const homes = () => [true, false].map((stored) => fleet.home({ sessionId, stored }).hash)
  fleet.find('00000001')!.drain(true)
  assert.deepEqual(homes(), ['00000001', '00000001'], 'one that an operator drains keeps its sessions')
  a.info = { state: 'draining' }
  await probe()
  assert.deepEqual(homes(), ['00000002', '00000001'])
  b.away = true
  await probe()
  assert.deepEqual(homes(), ['00000001', '00000001'])
})

/** One thing that happens to runner `who`. */
const step = fc.record({
  who: fc.nat({ max: hashes.length - 1 }),
  what: fc.constantFrom('leave', 'return', 'drain', 'undrain', 'stopping', 'restart', 'remove', 'place', 'home'),
})

test('whatever happens in whatever order, nothing is placed on a runner that drains, is away or was removed', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 60 }), async (steps) => {
      const runners = hashes.map((hash) => scripted(hash))
      const { fleet } = await fleetOf(...runners)
      const [gone, drained, stopping, removed] = [0, 1, 2, 3].map(() => new Set<string>()) as [
        Set<string>,
        Set<string>,
        Set<string>,
        Set<string>,
      ]
      const takes = (hash: string): boolean => ![gone, drained, stopping, removed].some((set) => set.has(hash))
      for (const [i, { who, what }] of steps.entries()) {
        const hash = hashes[who]!
        const runner = runners[who]!
        const member = fleet.find(hash)
        if (what === 'leave') gone.add(hash)
        if (what === 'return') gone.delete(hash)
        if (what === 'drain' && member) drained.add(hash)
        if (what === 'undrain') drained.delete(hash)
        if (what === 'stopping') stopping.add(hash)
        if (what === 'restart') stopping.delete(hash)
        if (what === 'remove' && member) {
          removed.add(hash)
          fleet.remove(member)
        }
        runner.away = gone.has(hash)
        runner.info = { instance: `i-${what === 'restart' ? i : 0}`, state: stopping.has(hash) ? 'draining' : 'live' }
        member?.drain(drained.has(hash))
        await member?.probe()
        const free = hashes.filter(takes)
        assert.deepEqual(
          fleet.describe().flatMap((m) => (m.state === 'live' ? [m.hash] : [])),
          free,
        )
        if (what === 'place') {
          if (free.length === 0) assert.equal(refusal(() => fleet.place({ runtime: 'general' })).code, 'no_runner')
          else assert.ok(takes(fleet.place({ runtime: 'general' }).hash))
        }
        if (what === 'home') {
          const sessionId = `sess-${hash}-0000000${i % 10}`
          const own = !gone.has(hash) && !removed.has(hash)
          if (own) assert.equal(fleet.home({ sessionId }).hash, hash, 'it is where it is, draining or not')
          else if (free.length === 0) assert.equal(refusal(() => fleet.home({ sessionId })).code, 'no_runner')
          else assert.ok(takes(fleet.home({ sessionId }).hash))
        }
      }
      fleet.stop()
    }),
    { numRuns: 60 },
  )
})
