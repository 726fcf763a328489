import assert from 'node:assert/strict'
import { appendFile, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import type { RunStore } from '#contracts/run-store'
import { openStores } from '../postgres/stores.ts'
import { begin, chunk, emptyFolder, finish, linesOf, logOf, mirrored, pathOf, text } from './support.ts'

/** A database that outlives the conductors which mirror it. */
const sharedStore = async (t: TestContext): Promise<RunStore> => (await openStores(t)).open()

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
  const { store, stop } = await mirrored(truth, dir)
  t.after(stop)
  const claim = await begin(store, 'r1', 's1')
  await store.append(claim, chunk(claim, 1, [text('a'), text('b')]))
  await finish(store, claim, 2)
  const bytes = await readFile(pathOf(dir, 'r1'), 'utf8')
  const events = bytes.slice(bytes.indexOf('\n') + 1, bytes.lastIndexOf('{"type":"finish"'))
  assert.equal(events, await logOf(truth, 'r1'))
  const { startedAt, finishedAt } = (await truth.findRun('acme', 'r1'))!
  const lines = await linesOf(dir, 'r1')
  assert.deepEqual([lines[0]!['startedAt'], lines.at(-1)!['finishedAt']], [startedAt, finishedAt])
})

test('a start mends what a killed conductor left: torn tails, missing events and endings, from the store', async (t) => {
  const dir = await emptyFolder(t)
  const truth = await sharedStore(t)
  const first = await mirrored(truth, dir)
  const torn = await begin(first.store, 'torn', 's1')
  await first.store.append(torn, chunk(torn, 1, [text('one'), text('two'), text('three')]))
  const lost = await begin(first.store, 'lost', 's2')
  await first.store.append(lost, chunk(lost, 1, [text('one')]))
  await first.stop()
  await truncate(pathOf(dir, 'torn'), (await readFile(pathOf(dir, 'torn'))).length - 7)
  await appendFile(pathOf(dir, 'lost'), '{"type":"assistant","runId":"lo')
  // Another conductor continued one of the runs, and ended both.
  await truth.append(lost, chunk(lost, 2, [text('two')]))
  await finish(truth, lost, 2)
  await truth.steal('acme', 'torn', 'interrupted', { code: 'interrupted', message: 'It went away.' })

  const second = await mirrored(truth, dir)
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
  const { store, stop } = await mirrored(truth, dir)
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
  const { store, stop, warnings } = await mirrored(truth, dir)
  t.after(stop)
  await writeFile(join(dir, 'acme'), 'in the way')
  const claim = await begin(store, 'r1', 's1')
  assert.equal(await store.append(claim, chunk(claim, 1, [text('one')])), true)
  assert.equal(await finish(store, claim, 1), true)
  assert.equal(warnings.filter((message) => message.includes('repaired later')).length, 1)
  await rm(join(dir, 'acme'))
  assert.equal((await finishedLines(dir, 'r1')).length, 4)
})

test('a file whose log was deleted by age is not mended, and none is begun again for it', async (t) => {
  const dir = await emptyFolder(t)
  const truth = await sharedStore(t)
  const first = await mirrored(truth, dir)
  const claim = await begin(first.store, 'r1', 's1')
  await first.store.append(claim, chunk(claim, 1, [text('one')]))
  await first.stop()
  await truth.append(claim, chunk(claim, 2, [text('two'), text('three')]))
  await finish(truth, claim, 4)
  const before = await readFile(pathOf(dir, 'r1'))
  let looks = 0
  // Of the log there is the end.
  const cut: RunStore = {
    ...truth,
    async readLog(tenantId, runId, afterSeq) {
      looks++
      return truth.readLog(tenantId, runId, Math.max(afterSeq, 3))
    },
  }
  const second = await mirrored(cut, dir)
  while (looks === 0) await new Promise((resolve) => setTimeout(resolve, 20))
  await second.stop()
  assert.deepEqual(second.warnings, [])
  assert.deepEqual(await readFile(pathOf(dir, 'r1')), before)
})

test('the file of a run that is taken back is gone', async (t) => {
  const dir = await emptyFolder(t)
  const { store, stop } = await mirrored(await sharedStore(t), dir)
  t.after(stop)
  const claim = await begin(store, 'r1', 's1')
  await store.append(claim, chunk(claim, 1, [text('a')]))
  assert.equal(await store.discard(claim), true)
  assert.deepEqual(await readdir(join(dir, 'acme')), [])
})
