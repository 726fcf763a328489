import assert from 'node:assert/strict'
import { appendFile, readFile, rm, truncate, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { definePlugin, type Plugin } from '#kernel'
import { RunJournal } from '#contracts/run-journal'
import { RunStore } from '#contracts/run-store'
import { runStorePlugin, testKernel } from '#testing'
import { begin, chunk, emptyFolder, finish, linesOf, logOf, openStore, pathOf, text } from './support.ts'

/** A store that outlives the conductors which mirror it, as a database does. */
async function sharedStore(t: TestContext): Promise<RunStore> {
  const found: { store?: RunStore } = {}
  const grab = definePlugin({
    name: 'grab',
    requires: { store: RunStore },
    async setup({ deps }) {
      found.store = deps.store
      return {}
    },
  })
  await testKernel(t, [await runStorePlugin(), grab], { listeners: [] })
  return found.store!
}
const mirrored = (store: RunStore): Plugin =>
  definePlugin({
    name: 'mirrored',
    requires: { journal: RunJournal },
    provides: { store: RunStore },
    setup: async ({ deps }) => ({ store: deps.journal.mirror(store) }),
  })

/** Looks until the file of a run has its finish line; the test's own timeout ends it. */
async function finishedLines(dir: string, runId: string): Promise<Record<string, unknown>[]> {
  for (;;) {
    const lines = await linesOf(dir, runId).catch(() => [])
    if (lines.at(-1)?.['type'] === 'finish') return lines
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

test('what the store accepted is in the file when a run is announced as finished', async (t) => {
  const dir = await emptyFolder(t)
  const truth = await sharedStore(t)
  const { store, stop } = await openStore(dir, [mirrored(truth)])
  t.after(stop)
  const claim = await begin(store, 'r1', 's1')
  await store.append(claim, chunk(claim, 1, [text('a'), text('b')]))
  await finish(store, claim, 2)
  const bytes = await readFile(pathOf(dir, 'r1'), 'utf8')
  const events = bytes.slice(bytes.indexOf('\n') + 1, bytes.lastIndexOf('{"type":"finish"'))
  assert.equal(events, await logOf(truth, 'r1'))
})

test('a start mends what a killed conductor left: torn tails, missing events and endings, from the store', async (t) => {
  const dir = await emptyFolder(t)
  const truth = await sharedStore(t)
  const first = await openStore(dir, [mirrored(truth)])
  const torn = await begin(first.store, 'torn', 's1')
  await first.store.append(torn, chunk(torn, 1, [text('one'), text('two'), text('three')]))
  const lost = await begin(first.store, 'lost', 's2')
  await first.store.append(lost, chunk(lost, 1, [text('one')]))
  await first.stop()
  await truncate(pathOf(dir, 'torn'), (await readFile(pathOf(dir, 'torn'))).length - 7)
  await appendFile(pathOf(dir, 'lost'), '{"type":"assistant","runId":"lo')
  // Another conductor went on with one and ended both.
  await truth.append(lost, chunk(lost, 2, [text('two')]))
  await finish(truth, lost, 2)
  await truth.steal('acme', 'torn', 'interrupted', { code: 'interrupted', message: 'It went away.' })

  const second = await openStore(dir, [mirrored(truth)])
  t.after(second.stop)
  for (const [runId, status] of [
    ['torn', 'interrupted'],
    ['lost', 'ok'],
  ] as const) {
    const lines = await finishedLines(dir, runId)
    assert.equal(lines.at(-1)!['status'], status)
    const stored = (await logOf(truth, runId)).trimEnd().split('\n')
    assert.deepEqual(
      lines.slice(1, -1),
      stored.map((line) => JSON.parse(line) as object),
    )
  }
})

test('a run that was taken over by another conductor ends in the files of both', async (t) => {
  const dir = await emptyFolder(t)
  const truth = await sharedStore(t)
  const { store, stop } = await openStore(dir, [mirrored(truth)])
  t.after(stop)
  const claim = await begin(store, 'r1', 's1')
  await store.append(claim, chunk(claim, 1, [text('one')]))
  await truth.steal('acme', 'r1', 'cancelled', { code: 'cancelled', message: 'Enough.' })
  assert.equal(await store.append(claim, chunk(claim, 2, [text('two')])), false)
  const lines = await finishedLines(dir, 'r1')
  assert.deepEqual(
    lines.map((line) => line['type']),
    ['header', 'assistant', 'error', 'finish'],
  )
})

test('a folder that cannot be written costs a warning and no run, and is mended when it can', async (t) => {
  const dir = await emptyFolder(t)
  const truth = await sharedStore(t)
  const { store, stop, logs } = await openStore(dir, [mirrored(truth)])
  t.after(stop)
  await writeFile(join(dir, 'acme'), 'in the way')
  const claim = await begin(store, 'r1', 's1')
  assert.equal(await store.append(claim, chunk(claim, 1, [text('one')])), true)
  assert.equal(await finish(store, claim, 1), true)
  assert.equal(logs.filter((line) => String(line['msg']).includes('mended later')).length, 1)
  await rm(join(dir, 'acme'))
  assert.equal((await finishedLines(dir, 'r1')).length, 4)
})
