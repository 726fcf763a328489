import assert from 'node:assert/strict'
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { testOrder } from '#testing'
import { openHome } from '../home.ts'
import { createProvider, type LocalSandbox, type SessionPlaces } from '../provider.ts'

const signal = new AbortController().signal
const order = (sessionId: string) => testOrder('http://127.0.0.1:1', { sessionId })

/** A provider whose sandboxes are no processes, so that a test can end one when it likes. */
async function open(t: TestContext, begin: (places: SessionPlaces) => Promise<unknown> = (places) => places.folders()) {
  const dir = await mkdtemp(join(tmpdir(), 'ao-provider-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const started: { end(): Promise<void>; ended: boolean }[] = []
  const provider = createProvider(await openHome({ dir }), async (_order, places) => {
    await begin(places)
    const { promise, resolve } = Promise.withResolvers<void>()
    const one = { ended: false, end: async () => (resolve(), void (one.ended = true)) }
    started.push(one)
    const sandbox: LocalSandbox = { ended: promise, end: one.end, pause: async () => {}, resume: async () => {} }
    return sandbox
  })
  t.after(() => provider.stop())
  const sessions = async (): Promise<string[]> => readdir(join(dir, (await readdir(dir))[0]!))
  return { provider, started, sessions, dir }
}

test('a session has one sandbox: the next one ends it and finds its files', async (t) => {
  const listings: string[][] = []
  const { provider, started } = await open(t, async (places) => {
    const { workspace } = await places.folders()
    listings.push(await readdir(workspace))
    await writeFile(join(workspace, 'kept'), '')
  })
  const former = await provider.launch(order('one'), signal)
  const next = await provider.launch(order('one'), signal)
  assert.equal(started[0]!.ended, true)
  assert.equal(await provider.status(former.sandboxId), 'gone')
  assert.equal(await provider.status(next.sandboxId), 'running')
  assert.deepEqual(listings, [[], ['kept']])
})

test('destroying a sandbox that was replaced leaves the files to the one that replaced it', async (t) => {
  const { provider, started, sessions } = await open(t)
  const former = await provider.launch(order('one'), signal)
  await started[0]!.end()
  const next = await provider.launch(order('one'), signal)
  await provider.destroy(former.sandboxId)
  assert.equal(await provider.status(next.sandboxId), 'running')
  assert.equal((await sessions()).length, 2, 'the folder of the session is there, beside the sign of life')
  await provider.destroy(next.sandboxId)
  assert.equal((await sessions()).length, 1)
})

test('a failed start keeps the files of a session that had a sandbox, and leaves none of one that had not', async (t) => {
  let fails = false
  const { provider, sessions } = await open(t, async (places) => {
    await places.folders()
    if (fails) throw new Error('no more')
  })
  const { sandboxId } = await provider.launch(order('one'), signal)
  fails = true
  await assert.rejects(provider.launch(order('one'), signal), /no more/)
  await assert.rejects(provider.launch(order('two'), signal), /no more/)
  assert.equal((await sessions()).length, 2)
  assert.equal(await provider.status(sandboxId), 'gone')
  await provider.destroy(sandboxId)
  assert.equal((await sessions()).length, 1)
})

test('sessions of different tenants have different files, whatever their ids are', async (t) => {
  const keys: string[] = []
  const { provider } = await open(t, async ({ key }) => void keys.push(key))
  for (const [tenantId, sessionId] of [
    ['a', 'bc'],
    ['ab', 'c'],
    ['../..', '/etc'],
  ] as const) {
    await provider.launch(testOrder('http://127.0.0.1:1', { tenantId, sessionId }), signal)
  }
  assert.equal(new Set(keys).size, 3)
  for (const key of keys) assert.match(key, /^[0-9a-f]{32}$/)
})

test('stopping ends every sandbox, refuses new ones and leaves no file', async (t) => {
  const { provider, started, dir } = await open(t)
  await provider.launch(order('one'), signal)
  const late = provider.launch(order('two'), signal)
  await provider.stop()
  await Promise.allSettled([late])
  assert.deepEqual(
    started.map(({ ended }) => ended),
    started.map(() => true),
  )
  await assert.rejects(provider.launch(order('three'), signal))
  assert.deepEqual(await readdir(dir), [])
})
