import assert from 'node:assert/strict'
import { appendFile, mkdir, mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { createConversations, projectName } from '../conversations.ts'
import { createRoot } from '../root.ts'

const line = '{"type":"user","message":{"role":"user","content":"hi"}}\n'

async function stage(t: TestContext, limits: { readonly sessions: number; readonly totalBytes: number }) {
  const parent = await mkdtemp(join(tmpdir(), 'runtime-a-test-'))
  const root = createRoot(parent)
  t.after(async () => {
    await root.remove()
    await rm(parent, { recursive: true, force: true })
  })
  await root.folder('sessions')
  const conversations = createConversations(root, limits)
  /** Begins a run, which writes this many lines. Resolves to its end. */
  const begin = async (sessionId: string, { tenantId = 'acme', lines = 1 } = {}): Promise<() => Promise<void>> => {
    const { folder, id } = await conversations.begin({ tenantId, sessionId, runId: `run of ${sessionId}` })
    const file = join(folder, 'projects', projectName, `${id}.jsonl`)
    await mkdir(dirname(file), { recursive: true })
    await appendFile(file, line.repeat(lines))
    return () => conversations.settle(sessionId, true)
  }
  const use = async (...run: Parameters<typeof begin>): Promise<void> => (await begin(...run))()
  const fetched = async (...run: Parameters<typeof begin>): Promise<void> => {
    await use(...run)
    await conversations.exportState(run[0])
  }
  const there = (...ids: string[]): string[] => ids.filter((id) => conversations.has(id))
  return { conversations, begin, use, fetched, there, folders: () => readdir(join(root.path, 'sessions')) }
}

test('the least recently used conversations go first, and none that a run is in', async (t) => {
  const { begin, fetched, there, folders } = await stage(t, { sessions: 2, totalBytes: 1_000_000 })
  for (const sessionId of ['a', 'b', 'a', 'c']) await fetched(sessionId)
  assert.deepEqual(there('a', 'b', 'c'), ['a', 'c'])
  const end = await begin('a')
  for (const sessionId of ['d', 'e']) await fetched(sessionId)
  assert.deepEqual(there('a', 'c', 'd', 'e'), ['a', 'e'])
  await end()
  assert.deepEqual((await folders()).toSorted(), ['a', 'e'])
})

test('a conversation that nobody has fetched stays, until there is twice as much as may be', async (t) => {
  const { begin, use, fetched, there } = await stage(t, { sessions: 9, totalBytes: 100 * line.length })
  await use('large', { tenantId: 'b', lines: 100 })
  const end = await begin('large', { tenantId: 'b' })
  for (const sessionId of ['old', 'new']) await use(sessionId)
  await fetched('fetched')
  await use('newer')
  assert.deepEqual(there('old', 'new', 'fetched', 'newer'), ['old', 'new', 'fetched', 'newer'])
  await use('larger', { lines: 100 })
  assert.deepEqual(there('large', 'old', 'new', 'fetched', 'newer', 'larger'), ['large', 'larger'])
  await end()
})

test('a copy from before the last run is none', async (t) => {
  const { use, fetched, there } = await stage(t, { sessions: 1, totalBytes: 1_000_000 })
  await fetched('a')
  await use('a')
  await use('b')
  assert.deepEqual(there('a', 'b'), ['a', 'b'])
})

test('the tenant that holds the most gives up its conversations first', async (t) => {
  const { fetched, there } = await stage(t, { sessions: 3, totalBytes: 100 * line.length })
  await fetched('victim', { tenantId: 'b' })
  for (const sessionId of ['a1', 'a2', 'a3']) await fetched(sessionId)
  assert.deepEqual(there('victim', 'a1', 'a2', 'a3'), ['victim', 'a2', 'a3'])
  await fetched('victim', { tenantId: 'b' })
  await fetched('a4', { lines: 100 })
  assert.deepEqual(there('victim', 'a2', 'a3', 'a4'), ['victim', 'a4'])
})

test('a tenant whose runs are in half of what may be kept has to wait with further ones', async (t) => {
  const { begin, use, there } = await stage(t, { sessions: 9, totalBytes: 100 * line.length })
  await use('large', { lines: 60 })
  const end = await begin('large')
  await assert.rejects(use('a'), { code: 'runtime_busy', retryable: true })
  await use('b', { tenantId: 'b' })
  await end()
  await use('a')
  assert.deepEqual(there('a', 'b', 'large'), ['a', 'b', 'large'])
})

test('a conversation goes neither while its run begins nor while its run ends', async (t) => {
  const { conversations, begin, fetched, there } = await stage(t, { sessions: 1, totalBytes: 1_000_000 })
  await fetched('a')
  const beginning = begin('a')
  await fetched('b')
  const end = await beginning
  await conversations.exportState('a')
  const [ended] = await Promise.allSettled([end(), fetched('c')])
  assert.equal(ended.status, 'fulfilled')
  assert.deepEqual(there('a'), ['a'])
  assert.equal((await conversations.begin({ tenantId: 'acme', sessionId: 'a', runId: 'next' })).resumes, true)
})
