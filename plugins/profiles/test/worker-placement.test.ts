import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Profile } from '#contracts/profiles'
import type { FleetMember } from '#contracts/runner'
import { workerPlacementOf } from '../view.ts'
import { conductor } from './conductor.ts'

const runner = (hash: string, over: Partial<FleetMember> = {}): FleetMember => ({
  hash,
  state: 'live',
  capabilities: [],
  capabilitiesKnown: true,
  substrates: ['process', 'vm'],
  defaultSubstrate: 'process',
  substratesKnown: true,
  activeSessions: 0,
  ...over,
})

const sandboxed = (provider?: string, over: Partial<Profile> = {}): Profile =>
  ({
    runtime: 'general',
    workerMode: 'sandbox',
    ...(provider === undefined ? {} : { sandbox: { provider } }),
    ...over,
  }) as Profile

test('nothing is said of a static profile, nor while no runner has said what it has', () => {
  assert.equal(workerPlacementOf(sandboxed('vm', { workerMode: 'static' }), [runner('a')]), undefined)
  for (const fleet of [
    [],
    [runner('a', { state: 'unreachable' }), runner('b', { state: 'draining' })],
    [runner('a', { substratesKnown: false, substrates: [] })],
  ])
    assert.equal(workerPlacementOf(sandboxed('vm'), fleet), undefined)
})

test('where no live runner has the runtime, no sandbox will be, and it says so', () => {
  assert.deepEqual(workerPlacementOf(sandboxed('vm'), [runner('a', { capabilities: ['runtime_a'] })]), {
    substrate: null,
    source: 'unresolved',
    servable: false,
    detail: "No live runner has the runtime 'general'.",
  })
})

test('what the profile asks for is what it gets, when every runner has it', () => {
  const fleet = [
    runner('a'),
    runner('b', { defaultSubstrate: 'vm' }),
    runner('c', { state: 'unreachable', substrates: [] }),
  ]
  assert.deepEqual(workerPlacementOf(sandboxed('vm'), fleet), { substrate: 'vm', source: 'profile', servable: true })
})

test('one runner that has it is enough: sessions are placed there', () => {
  const fleet = [runner('a'), runner('b', { substrates: ['process'] })]
  assert.deepEqual(workerPlacementOf(sandboxed('vm'), fleet), { substrate: 'vm', source: 'profile', servable: true })
})

test('what no runner has cannot be honoured, and it says what there is', () => {
  assert.deepEqual(workerPlacementOf(sandboxed('moon'), [runner('a'), runner('b', { substrates: ['cloud', 'vm'] })]), {
    substrate: null,
    source: 'unresolved',
    servable: false,
    requested: 'moon',
    detail: "No live runner has 'moon'; they have cloud, process, vm.",
  })
  const none = workerPlacementOf(sandboxed('moon'), [runner('a', { substrates: [] })])
  assert.equal(none?.detail, "No live runner has 'moon', nor any other substrate.")
})

test('without a wish it is the default of the runners, as far as they agree', () => {
  assert.deepEqual(workerPlacementOf(sandboxed(), [runner('a'), runner('b')]), {
    substrate: 'process',
    source: 'default',
    servable: true,
  })
  assert.deepEqual(workerPlacementOf(sandboxed(), [runner('a'), runner('b', { defaultSubstrate: 'vm' })]), {
    substrate: null,
    source: 'unresolved',
    servable: true,
    detail: 'The defaults of the live runners differ: process, vm. Name one as sandbox.provider.',
  })
  const { defaultSubstrate: _, ...bare } = runner('b', { substrates: [] })
  assert.deepEqual(workerPlacementOf(sandboxed(), [runner('a'), bare]), {
    substrate: 'process',
    source: 'default',
    servable: true,
  })
  assert.deepEqual(workerPlacementOf(sandboxed(), [bare]), {
    substrate: null,
    source: 'unresolved',
    servable: false,
    detail: 'No live runner has a default substrate; name one as sandbox.provider.',
  })
})

test('only the runners that may take its sessions count: of the pool, and with the runtime', () => {
  const fleet = [
    runner('aaaaaaaa', { defaultSubstrate: 'vm' }),
    runner('bbbbbbbb'),
    runner('cccccccc', { capabilities: ['runtime_a'], defaultSubstrate: 'cloud' }),
  ]
  const inPool = sandboxed(undefined, { placement: { runners: ['aaaaaaaa', 'cccccccc'] } })
  assert.equal(workerPlacementOf(inPool, fleet)?.substrate, 'vm')
  assert.equal(workerPlacementOf(sandboxed(undefined, { placement: { runtimes: ['runtime_a'] } }), fleet), undefined)
})

test('it is computed on every read, and never stored', async (t) => {
  const fleet = [runner('aaaaaaaa')]
  const { call, database } = await conductor(t, { fleet })
  const body = { name: 'p', workerMode: 'sandbox', workerPlacement: { substrate: 'made up' } }
  const placed = { substrate: 'process', source: 'default', servable: true }
  const created = await call('POST', '/api/profiles', body)
  assert.deepEqual(created.json().workerPlacement, placed)
  assert.deepEqual((await call('PUT', '/api/profiles/p', created.json())).json().workerPlacement, placed)
  await call('POST', '/api/profiles', { name: 'static' })
  fleet[0] = runner('aaaaaaaa', { defaultSubstrate: 'vm' })
  assert.equal((await call('GET', '/api/profiles/p')).json().workerPlacement.substrate, 'vm')
  const [p, plain] = (await call('GET', '/api/profiles')).json<Record<string, unknown>[]>()
  assert.deepEqual(p!['workerPlacement'], { ...placed, substrate: 'vm' })
  assert.equal('workerPlacement' in plain!, false)
  fleet.pop()
  assert.equal('workerPlacement' in (await call('GET', '/api/profiles/p')).json(), false)
  const [rows] = await database.batch('acme', [{ text: `SELECT FROM profiles WHERE document::text LIKE '%lacement%'` }])
  assert.deepEqual(rows, [])
})
