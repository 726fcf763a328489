import assert from 'node:assert/strict'
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { testRunStore } from '#testing'
import { begin, chunk, emptyFolder, finish, linesOf, logOf, keptStore, pathOf, text } from './support.ts'

testRunStore('the store in memory that is kept in files', async (t) => keptStore(t, await emptyFolder(t)))

test('a file has a header, the events as they are, and a finish line', async (t) => {
  const dir = await emptyFolder(t)
  const store = await keptStore(t, dir)
  const claim = await begin(store, 'r1', 's1')
  await store.append(claim, chunk(claim, 1, [{ type: 'progress', stage: 'accepted' }, text('Hel'), text('lo\u2028')]))
  await finish(store, claim, 3)
  const [header, ...rest] = await linesOf(dir, 'r1')
  assert.equal(header!['type'], 'header')
  assert.equal(header!['tenantId'], 'acme')
  assert.deepEqual(header!['task'], { profile: 'writer', prompt: 'Write r1' })
  assert.deepEqual(
    rest.map((line) => line['type']),
    ['progress', 'assistant', 'assistant', 'result', 'finish'],
  )
  assert.equal(rest.at(-1)!['status'], 'ok')
})

test('a start puts runs, logs and sessions back, and a session goes on', async (t) => {
  const dir = await emptyFolder(t)
  const first = await keptStore(t, dir)
  const one = await begin(first, 'r1', 's1')
  await first.append(one, chunk(one, 1, [{ type: 'session_init', runtimeSessionId: 'vendor-1' }, text('Hi')]))
  await finish(first, one, 2)
  const two = await begin(first, 'r2', 's1', false)
  await first.steal('acme', 'r2', 'cancelled', { code: 'cancelled', message: 'The run was cancelled.' })
  assert.equal(await finish(first, two, 0), false)
  const before = { runs: await first.listRuns('acme', {}), log: await logOf(first, 'r1') }

  const second = await keptStore(t, dir)
  const after = await second.listRuns('acme', {})
  assert.deepEqual(
    after.items.map(({ runId, status, result, error, startedAt, subTask }) => ({
      runId,
      status,
      result,
      error,
      startedAt,
      subTask,
    })),
    before.runs.items.map(({ runId, status, result, error, startedAt, subTask }) => ({
      runId,
      status,
      result,
      error,
      startedAt,
      subTask,
    })),
  )
  assert.equal(await logOf(second, 'r1'), before.log)
  const session = await second.getSession('acme', 's1')
  assert.equal(session?.runCount, 2)
  assert.equal(session.status, 'idle')
  assert.equal((await second.findSession('acme', 's1'))?.runtimeSessionId, 'vendor-1')
  const three = await begin(second, 'r3', 's1', false)
  assert.equal(await finish(second, three, 0), true)
})

test('a run that waited for its session is in a file as well, once it begins', async (t) => {
  const dir = await emptyFolder(t)
  const store = await keptStore(t, dir)
  const one = await begin(store, 'r1', 's1')
  await store.enqueue({
    tenantId: 'acme',
    runId: 'r2',
    sessionId: 's1',
    task: { profile: 'writer', prompt: 'Write r2' },
    interrupt: false,
  })
  await finish(store, one, 0)
  const next = await store.claimNext('acme', 's1')
  assert.ok(next.kind === 'started')
  await finish(store, next.claim, 0)
  assert.deepEqual(
    (await linesOf(dir, 'r2')).map((line) => line['type']),
    ['header', 'result', 'finish'],
  )
})

test('a run shows after a start what it showed before: attachments, format, parent, wait and attempts', async (t) => {
  const dir = await emptyFolder(t)
  const first = await keptStore(t, dir)
  const one = await begin(first, 'r1', 's1')
  await first.enqueue({
    tenantId: 'acme',
    runId: 'r2',
    sessionId: 's1',
    task: {
      profile: 'writer',
      prompt: 'What is it?',
      metadata: { order: 1 },
      attachments: [{ mediaType: 'text/plain', name: 'a.txt', data: 'aGVsbG8=' }],
      responseFormat: { type: 'json_schema', name: 'answer', schema: { type: 'object' } },
      parent: { runId: 'r0', depth: 1 },
    },
    interrupt: false,
  })
  await finish(first, one, 0)
  const next = await first.claimNext('acme', 's1')
  assert.ok(next.kind === 'started')
  await first.retry(next.claim, 2, chunk(next.claim, 1, [text('again')]))
  await finish(first, next.claim, 1)
  const before = await first.findRun('acme', 'r2')
  assert.deepEqual([before?.attempt, before?.subTask.attachments?.length, before?.parent?.runId], [2, 1, 'r0'])
  const second = await keptStore(t, dir)
  assert.deepEqual(await second.findRun('acme', 'r2'), before)
  assert.deepEqual(await second.findRun('acme', 'r1'), await first.findRun('acme', 'r1'))
})

test('R7: a file cut at any byte boots, keeps a prefix of the events and ends once', async (t) => {
  const dir = await emptyFolder(t)
  const store = await keptStore(t, dir)
  const claim = await begin(store, 'r1', 's1')
  await store.append(
    claim,
    chunk(claim, 1, [{ type: 'progress', stage: 'accepted' }, text('"{\\n'), text('\u00e9\u{1F600}')]),
  )
  await finish(store, claim, 3)
  const whole = await readFile(pathOf(dir, 'r1'))
  const allEvents = (await linesOf(dir, 'r1')).slice(1, -1)
  const headerEnd = whole.indexOf(0x0a) + 1

  for (let size = 0; size <= whole.length; size++) {
    await rm(join(dir, 'acme'), { recursive: true })
    await mkdir(join(dir, 'acme'))
    await writeFile(pathOf(dir, 'r1'), whole.subarray(0, size))
    const restored = await keptStore(t, dir)
    const run = await restored.findRun('acme', 'r1')
    if (size < headerEnd) {
      assert.equal(run, undefined, `${size} bytes: without a header there was no run`)
      assert.deepEqual(
        (await readdir(join(dir, 'acme'))).filter((name) => name.endsWith('.jsonl')),
        [],
      )
      continue
    }
    const lines = await linesOf(dir, 'r1')
    const events = lines.slice(1, -1)
    assert.equal(lines.filter((line) => line['type'] === 'finish').length, 1, `${size} bytes`)
    assert.equal(lines.at(-1)!['type'], 'finish')
    const terminal = events.filter((event) => event['type'] === 'result' || event['type'] === 'error')
    assert.equal(terminal.length, 1, `${size} bytes: one terminal event`)
    assert.equal(events.at(-1), terminal[0])
    const intact = events.at(-1)!['type'] === 'result' ? events : events.slice(0, -1)
    assert.deepEqual(intact, allEvents.slice(0, intact.length), `${size} bytes: a prefix`)
    assert.deepEqual(
      events.map((event) => event['seq']),
      events.map((_, i) => i + 1),
    )
    assert.equal(run?.status, events.at(-1)!['type'] === 'result' ? 'ok' : 'interrupted')
    assert.equal(lines.at(-1)!['status'], run.status)
  }
})

test('a run whose file cannot be begun is refused, and holds no session', async (t) => {
  const dir = await emptyFolder(t)
  const store = await keptStore(t, dir)
  await writeFile(join(dir, 'acme'), 'in the way')
  await assert.rejects(begin(store, 'r1', 's1'), { code: 'unavailable' })
  await rm(join(dir, 'acme'))
  const claim = await begin(store, 'r2', 's1', false)
  assert.equal(await finish(store, claim, 0), true)
  assert.equal((await linesOf(dir, 'r2')).at(-1)!['status'], 'ok')
})

test('the file of a run that is taken back is gone', async (t) => {
  const dir = await emptyFolder(t)
  const store = await keptStore(t, dir)
  const claim = await begin(store, 'r1', 's1')
  await store.append(claim, chunk(claim, 1, [text('a')]))
  assert.equal(await store.discard(claim), true)
  assert.deepEqual(await readdir(join(dir, 'acme')), [])
  assert.equal(await (await keptStore(t, dir)).findRun('acme', 'r1'), undefined)
})
