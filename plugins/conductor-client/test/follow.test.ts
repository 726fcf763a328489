import assert from 'node:assert/strict'
import { test } from 'node:test'
import { logDeletedStage, type RuntimeEvent } from '#contracts/run-event'
import { follow } from '../index.ts'
import { conductorPeers } from '../peer.ts'
import {
  beginLog,
  client,
  events,
  fakeConductor,
  linesFrom,
  logOf,
  recordingSigner,
  signal,
  task,
} from './conductor.ts'

test('events arrive as they are written, not when the answer ends', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  const wrote = Promise.withResolvers<NodeJS.WritableStream>()
  conductor.answer = (_seen, response) => {
    beginLog(response, 202, 'run_1').write(linesFrom('run_1', events.slice(0, 1)))
    wrote.resolve(response)
  }
  const started = await dispatch.start('acme', task, 0, signal)
  const chunks = started.events[Symbol.asyncIterator]()
  assert.equal((await chunks.next()).value?.count, 1)
  const response = await wrote.promise
  response.end(linesFrom('run_1', events, 2))
  assert.equal((await chunks.next()).value?.firstSeq, 2)
})

test('a log that is cut at any byte goes on where it was, each event once', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  const whole = linesFrom('run_1', events)
  for (let cut = 0; cut < whole.length; cut += 97) {
    conductor.seen.length = 0
    conductor.answer = (seen, response) => {
      if (seen.method === 'POST') {
        const out = beginLog(response, 202, 'run_1')
        if (cut === 0) return void out.destroy()
        return void out.write(whole.slice(0, cut), () => out.destroy())
      }
      const after = Number(new URL(seen.url, 'http://x').searchParams.get('after'))
      beginLog(response, 200, 'run_1').end(linesFrom('run_1', events, after + 1))
    }
    const started = await dispatch.start('acme', task, 0, signal)
    assert.equal(await logOf(started.events), whole, `cut at ${cut}`)
    const complete = whole.slice(0, cut).split('\n').length - 1
    assert.equal(conductor.seen.at(-1)?.url, `/api/runs/run_1/events?after=${complete}`)
  }
})

test('a log that goes on with another event than the next is asked for again', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  let answers = 0
  conductor.answer = (_seen, response) => {
    const wrong = answers++ === 0
    beginLog(response, 200, 'run_1').end(linesFrom('run_1', events, wrong ? 3 : 1))
  }
  assert.equal(await logOf(dispatch.follow('acme', 'run_1', 0, signal)), linesFrom('run_1', events))
  assert.equal(answers, 2)
})

test('a log of which all but the end was deleted by age begins where it says so', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  const cut = [...events.slice(0, 8), { type: 'progress', stage: logDeletedStage } as RuntimeEvent, events[9]!]
  conductor.answer = (_seen, response) => void beginLog(response, 200, 'run_1').end(linesFrom('run_1', cut, 9))
  assert.equal(await logOf(dispatch.follow('acme', 'run_1', 0, signal), 8), linesFrom('run_1', cut, 9))
  assert.equal(conductor.seen.length, 1)
})

test('a conductor that restarts is waited for', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  conductor.answer = (_seen, response) => {
    beginLog(response, 202, 'run_1').write(linesFrom('run_1', events.slice(0, 4)))
  }
  const started = await dispatch.start('acme', task, 0, signal)
  const chunks = started.events[Symbol.asyncIterator]()
  assert.equal((await chunks.next()).value?.count, 4)
  await conductor.stop()
  const rest = chunks.next()
  conductor.answer = (seen, response) => {
    assert.equal(seen.url, '/api/runs/run_1/events?after=4')
    beginLog(response, 200, 'run_1').end(linesFrom('run_1', events, 5))
  }
  await conductor.start()
  assert.deepEqual([(await rest).value?.firstSeq, (await rest).value?.count], [5, 6])
})

test('a log that ends in order before its run does is asked for the rest', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  conductor.answer = (seen, response) => {
    const after = Number(new URL(seen.url, 'http://x').searchParams.get('after'))
    beginLog(response, 200, 'run_1').end(linesFrom('run_1', events.slice(0, after + 4), after + 1))
  }
  assert.equal(await logOf(dispatch.follow('acme', 'run_1', 0, signal)), linesFrom('run_1', events))
  assert.deepEqual(
    conductor.seen.map((seen) => seen.url.split('=')[1]),
    ['0', '4', '8'],
  )
})

test('a conductor that stays away ends the log with upstream', async (t) => {
  const conductor = await fakeConductor(t)
  const peers = conductorPeers(recordingSigner())
  t.after(() => peers.close())
  await conductor.stop()
  const log = follow(peers.at(conductor.url), { tenantId: 'acme', runId: 'run_1', afterSeq: 0, signal, giveUpMs: 200 })
  await assert.rejects(logOf(log), { code: 'upstream', status: 502 })
})

test('open logs never wait for one another, and a finished one leaves its connection to the next', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  const open: NodeJS.WritableStream[] = []
  conductor.answer = (seen, response) => {
    const { id } = JSON.parse(seen.body.toString()) as { id: string }
    open.push(beginLog(response, 202, id))
    response.write(linesFrom(id, events.slice(0, 1)))
  }
  const runs = await Promise.all(
    Array.from({ length: 150 }, (_, i) => dispatch.start('acme', { ...task, id: `run_${i}` }, 0, signal)),
  )
  const logs = runs.map((run) => run.events[Symbol.asyncIterator]())
  for (const log of logs) assert.equal((await log.next()).value?.count, 1)
  assert.equal(conductor.connections, 150)
  for (const [i, response] of open.entries()) {
    const { id } = JSON.parse(conductor.seen[i]!.body.toString()) as { id: string }
    response.end(linesFrom(id, events, 2))
  }
  for (const log of logs) {
    assert.equal((await log.next()).value?.firstSeq, 2)
    // Leaves at the terminal event, as watchers do.
    await log.return?.()
  }
  conductor.answer = (_seen, response) => beginLog(response, 202, 'run_x').end(linesFrom('run_x', events))
  for (let i = 0; i < 20; i++) {
    for await (const { lines } of (await dispatch.start('acme', { ...task, id: 'run_x' }, 0, signal)).events) {
      if (lines.includes('"result"')) break
    }
  }
  // The first may come before any of the others has been given back.
  assert.ok(conductor.connections <= 151, `${conductor.connections} connections`)
})

test('a reader that leaves at the terminal event keeps the connection, although the end of the answer comes later', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  for (let i = 0; i < 10; i++) {
    const ended = Promise.withResolvers<void>()
    conductor.answer = (_seen, response) => {
      beginLog(response, 202, 'run_1').write(linesFrom('run_1', events))
      response.once('close', ended.resolve)
      setTimeout(() => response.end(), 2)
    }
    for await (const { lines } of (await dispatch.start('acme', task, 0, signal)).events) {
      if (lines.includes('"result"')) break
    }
    await ended.promise
  }
  assert.ok(conductor.connections <= 3, `${conductor.connections} connections`)
})

test('an aborted log closes its connection at once', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  const closed = Promise.withResolvers<void>()
  conductor.answer = (_seen, response) => {
    response.once('close', () => closed.resolve())
    beginLog(response, 200, 'run_1').write(linesFrom('run_1', events.slice(0, 1)))
  }
  const leaving = new AbortController()
  const log = dispatch.follow('acme', 'run_1', 0, leaving.signal)[Symbol.asyncIterator]()
  await log.next()
  const next = log.next()
  leaving.abort()
  await assert.rejects(next, { name: 'AbortError' })
  await closed.promise
})
