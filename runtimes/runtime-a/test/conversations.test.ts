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
  /** Begins a run, which writes this much. Resolves to its end. */
  const begin = async (sessionId: string, text = line): Promise<() => Promise<void>> => {
    const { folder, id } = await conversations.begin({ sessionId, runId: `run of ${sessionId}` })
    const file = join(folder, 'projects', projectName, `${id}.jsonl`)
    await mkdir(dirname(file), { recursive: true })
    await appendFile(file, text)
    return () => conversations.settle(sessionId, true)
  }
  const use = async (sessionId: string): Promise<void> => (await begin(sessionId))()
  const there = (...ids: string[]): string[] => ids.filter((id) => conversations.has(id))
  return { conversations, begin, use, there, folders: () => readdir(join(root.path, 'sessions')) }
}

test('the least recently used conversations go first, and none that a run is in', async (t) => {
  const { begin, use, there, folders } = await stage(t, { sessions: 2, totalBytes: 1_000_000 })
  await use('a')
  await use('b')
  await use('a')
  await use('c')
  assert.deepEqual(there('a', 'b', 'c'), ['a', 'c'])
  const end = await begin('a')
  await use('d')
  await use('e')
  assert.deepEqual(there('a', 'c', 'd', 'e'), ['a', 'e'])
  await end()
  assert.deepEqual((await folders()).toSorted(), ['a', 'e'])
})

test('what runs hold may take all the room, and the newest conversation stays nevertheless', async (t) => {
  const { begin, use, there } = await stage(t, { sessions: 9, totalBytes: 1_000 })
  await (
    await begin('large', line.repeat(100))
  )()
  const end = await begin('large')
  await use('old')
  assert.deepEqual(there('large', 'old'), ['large', 'old'])
  await use('new')
  assert.deepEqual(there('large', 'old', 'new'), ['large', 'new'])
  await end()
  assert.deepEqual(there('large', 'new'), ['large'])
})
