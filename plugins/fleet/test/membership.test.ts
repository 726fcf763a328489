import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { AppError } from '#kernel'
import { runnerHash } from '#contracts/ids'
import { createMembership } from '../membership.ts'
import { RunnerFleet } from '../fleet.ts'
import { checkRunnerUrl } from '../remote-runner.ts'
import { probeAll, type Scripted, scripted, scriptedFleet, silent } from './scripted.ts'

/** A membership over runners by URL; `known` is what RUNNER_URLS says. */
function fleetOf(runners: Record<string, Scripted>, configured: readonly string[]) {
  const fleet = new RunnerFleet({ intervalMs: 3_600_000, log: silent })
  const connect = (url: string) => (runners[url] ??= scripted(runnerHash(url), {})).link
  for (const url of configured) fleet.add(connect(url), url)
  return { fleet, membership: createMembership({ fleet, configured, connect }) }
}

test('reconcile adds and never removes; without URLs it asks the configured ones again', async (t) => {
  const runners: Record<string, Scripted> = {}
  const { membership, fleet } = fleetOf(runners, ['http://a:1'])
  t.after(() => fleet.stop())
  runners['http://a:1']!.away = true
  await probeAll(fleet)
  assert.deepEqual(
    fleet.describe().map((m) => m.state),
    ['unreachable'],
  )
  runners['http://a:1']!.away = false
  assert.deepEqual(await membership.reconcile(), [
    { url: 'http://a:1', hash: runnerHash('http://a:1'), state: 'live', added: false },
  ])
  const added = await membership.reconcile(['http://b:2/', 'http://b:2'])
  assert.deepEqual(added, [{ url: 'http://b:2', hash: runnerHash('http://b:2'), state: 'live', added: true }])
  assert.equal(fleet.all().length, 2)
  assert.equal((await membership.reconcile(['http://b:2']))[0]!.added, false)
})

test('a removed runner is routed to no longer, says how many sessions it had, and a reconcile brings it back', async (t) => {
  const runners: Record<string, Scripted> = {}
  const { membership, fleet } = fleetOf(runners, ['http://a:1', 'http://b:2'])
  t.after(() => fleet.stop())
  const hash = runnerHash('http://a:1')
  runners['http://a:1']!.info = { activeSessions: 7 }
  await probeAll(fleet)
  assert.deepEqual(await membership.remove(hash), { url: 'http://a:1', hash, state: 'live', unroutableSessions: 7 })
  assert.equal(await membership.remove(hash), undefined)
  assert.equal(fleet.owner(`sess-${hash}-00000001`), undefined)
  assert.equal(fleet.all().length, 1)
  runners['http://a:1']!.away = true
  await membership.reconcile()
  assert.equal((await membership.remove(hash))!.unroutableSessions, null, 'what could not be asked was not measured')
})

test('drain and undrain are by hash; an unknown one is told', async (t) => {
  const { membership, fleet } = fleetOf({}, ['http://a:1'])
  t.after(() => fleet.stop())
  await probeAll(fleet)
  const hash = runnerHash('http://a:1')
  assert.equal(membership.drain(hash)?.state, 'draining')
  assert.equal(fleet.describe()[0]!.state, 'draining')
  assert.equal(membership.undrain(hash)?.state, 'live')
  for (const change of [membership.drain, membership.undrain]) assert.equal(change('ffffffff'), undefined)
})

test('a runner that two URLs lead to is drained and removed by its hash, whichever URL answers', async () => {
  const runners = { 'http://a:1': scripted('00000001'), 'http://b:2': scripted('00000001') }
  const { membership, fleet } = fleetOf(runners, Object.keys(runners))
  const states = () => fleet.describe().map(({ state }) => state)
  const probe = () => Promise.all(Object.keys(runners).map((url) => fleet.at(url)!.probe()))
  await probe()
  assert.equal(membership.drain('00000001')?.state, 'draining')
  runners['http://a:1'].away = true
  await probe()
  assert.equal(fleet.find('00000001')!.url, 'http://b:2')
  assert.deepEqual(states(), ['draining'])
  assert.equal(membership.undrain('00000001')?.state, 'live')
  assert.equal((await membership.remove('00000001'))?.url, 'http://b:2')
  assert.deepEqual(states(), [])
})

test('two URLs whose runners report one hash are one runner, the one that answers; it is said once', async () => {
  const [a, b] = [scripted('00000001'), scripted('00000001', { instance: 'i-1' })]
  const warnings: unknown[] = []
  const log = Object.assign(Object.create(silent) as typeof silent, {
    warn: (...said: unknown[]) => warnings.push(said),
  })
  const fleet = new RunnerFleet({ intervalMs: 3_600_000, log })
  fleet.add(a.link, 'http://a:1')
  fleet.add(b.link, 'http://b:2')
  assert.equal(fleet.describe().length, 1)
  await Promise.all([a, b].map((_, i) => fleet.at(['http://a:1', 'http://b:2'][i]!)!.probe()))
  assert.equal(fleet.find('00000001')!.url, 'http://a:1')
  a.away = true
  await fleet.at('http://a:1')!.probe()
  assert.equal(fleet.find('00000001')!.url, 'http://b:2')
  assert.deepEqual(
    fleet.describe().map((m) => m.state),
    ['live'],
  )
  assert.equal(warnings.filter((said) => String((said as unknown[])[1]).startsWith('two URLs')).length, 1)
})

test('listeners hear of a runner when it is first live and when its process is another one, and while it is stopping', async () => {
  const a = scripted('00000001')
  const fleet = scriptedFleet(a)
  const heard: string[] = []
  const leave = fleet.onLive((link) => heard.push(`live ${link.hash}`))
  fleet.onLive(() => assert.fail('what a listener throws is its own'))
  fleet.onDraining((link) => heard.push(`draining ${link.hash}`))
  for (let i = 0; i < 2; i++) await probeAll(fleet)
  a.away = true
  await probeAll(fleet)
  a.away = false
  await probeAll(fleet)
  assert.deepEqual(heard, ['live 00000001'], 'coming back with its memory is nothing new')
  a.info = { instance: 'i-2' }
  await probeAll(fleet)
  a.info = { instance: 'i-2', state: 'draining' }
  for (let i = 0; i < 2; i++) await probeAll(fleet)
  leave()
  a.info = { instance: 'i-3' }
  await probeAll(fleet)
  assert.deepEqual(heard, ['live 00000001', 'live 00000001', 'draining 00000001', 'draining 00000001'])
})

test('a probe that fails once is asked again before the runner is away, and readers of one probe share it', async () => {
  const a = scripted('00000001')
  const fleet = scriptedFleet(a)
  const [member] = fleet.members()
  await Promise.all([member!.probe(), member!.probe(), member!.probe()])
  assert.equal(a.probes, 1)
  let failures = 1
  Object.defineProperty(a, 'away', { get: () => failures-- > 0 })
  await member!.probe()
  assert.equal(member!.state, 'live')
})

test('a runner URL is http or https, without credentials, query or fragment, and never link-local or a metadata service', () => {
  for (const [url, base] of [
    ['http://127.0.0.1:7060', 'http://127.0.0.1:7060'],
    ['https://runner.internal/', 'https://runner.internal'],
    ['http://10.0.0.7:7060/base/', 'http://10.0.0.7:7060/base'],
    ['http://[::1]:7060', 'http://[::1]:7060'],
    ['http://[fd12::7]:7060', 'http://[fd12::7]:7060'],
    ['http://100.64.0.7:7060', 'http://100.64.0.7:7060'],
    ['http://8.8.8.8:7060', 'http://8.8.8.8:7060'],
  ] as const) {
    assert.equal(checkRunnerUrl(url), base)
  }
  const refused = [
    'runner:7060',
    'ftp://runner',
    'file:///etc/passwd',
    'http://user:secret@runner',
    'http://runner/#x',
    'http://runner/?x=1',
    'http://169.254.169.254/latest',
    'http://0xa9fea9fe',
    'http://2852039166',
    'http://[fe80::1]',
    'http://[::ffff:169.254.169.254]',
    'http://168.63.129.16/machine',
    'http://[::ffff:168.63.129.16]',
    'http://100.100.100.200',
    'http://[fd00:ec2::254]/latest',
    'http://[fd00:ec2:0:0::0254]',
    'http://[fd20:ce::254]',
    'http://[64:ff9b::169.254.169.254]',
    'http://[2002:a9fe:a9fe::]',
    'http://metadata.google.internal/computeMetadata/v1/',
    'http://METADATA.google.internal.',
    'http://metadata',
    'http://instance-data.ec2.internal',
    'http://224.0.0.1',
  ]
  for (const url of refused) {
    assert.throws(
      () => checkRunnerUrl(url),
      (e: AppError) => e.code === 'invalid_request' && e.status === 400 && !e.message.includes('secret'),
      url,
    )
  }
})
