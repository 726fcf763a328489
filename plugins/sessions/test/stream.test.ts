import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { createParser, type EventSourceMessage } from 'eventsource-parser'
import type { Kv } from '#contracts/kv'
import { after, createEventEncoder, lastSeqOf, type LogChunk, type RuntimeEvent } from '#contracts/run-event'
import type { Claim, RunStore } from '#contracts/run-store'
import type { RunDispatch } from '#contracts/runs'
import { sessionChannels } from '#contracts/sessions'
import { stage } from './stage.ts'

const chunk = (claim: Claim, firstSeq: number, events: readonly RuntimeEvent[]): LogChunk => {
  const encoder = createEventEncoder(claim.runId, claim.sessionId, firstSeq)
  return { firstSeq, count: events.length, lines: Buffer.from(events.map((event) => encoder.line(event)).join('')) }
}
const text = (words: string): RuntimeEvent => ({ type: 'assistant', text: words, delta: true })

async function streaming(t: TestContext) {
  const listeners = new Map<string, Set<() => void>>()
  const kv: Partial<Kv> = {
    subscribe(channel, listener) {
      const set = listeners.get(channel) ?? new Set()
      listeners.set(channel, set.add(listener as () => void))
      return () => void set.delete(listener as () => void)
    },
  }
  const dispatch = (store: RunStore): Partial<RunDispatch> => ({
    async *follow(tenantId, runId, afterSeq, signal) {
      let cursor = afterSeq
      while (!signal.aborted) {
        const page = await store.readLog(tenantId, runId, cursor)
        for (const stored of page?.chunks ?? []) {
          const part = after(stored, cursor)
          if (!part) continue
          yield part
          cursor = lastSeqOf(part)
        }
        if (page?.status !== 'running' && page?.chunks.length === 0) return
        await new Promise((resolve) => setImmediate(resolve))
      }
    },
  })
  const { kernel, store, begin } = await stage(t, {
    kv: kv as Kv,
    dispatch: (of) => dispatch(of) as RunDispatch,
    listen: true,
  })
  let count = 0
  const listening = (sessionId: string) => listeners.get(`${sessionChannels}acme:${sessionId}`) ?? new Set<() => void>()
  const wake = (sessionId: string): void => {
    for (const listener of listening(sessionId)) listener()
  }
  return {
    store,
    wake,
    watching: (sessionId: string): number => listening(sessionId).size,
    async begin(sessionId: string): Promise<Claim> {
      const claim = await begin(sessionId, `run-${++count}`)
      wake(sessionId)
      return claim
    },
    end: (claim: Claim, firstSeq: number) =>
      store.finish({
        claim,
        status: 'ok',
        sessionStatus: 'idle',
        tail: chunk(claim, firstSeq, [{ type: 'result', text: 'done', finishReason: 'stop' }]),
      }),
    async open(sessionId: string, headers: Record<string, string> = {}) {
      const abort = new AbortController()
      t.after(() => abort.abort())
      const response = await fetch(`${kernel.urls['conductor']}/api/sessions/${sessionId}/stream`, {
        headers,
        signal: abort.signal,
      })
      return { response, events: events(response), leave: () => abort.abort() }
    },
  }
}

async function* events(response: Response): AsyncGenerator<EventSourceMessage> {
  const ready: EventSourceMessage[] = []
  const parser = createParser({ onEvent: (event) => void ready.push(event) })
  const decoder = new TextDecoder()
  for await (const bytes of response.body!) {
    parser.feed(decoder.decode(bytes as Uint8Array, { stream: true }))
    yield* ready.splice(0)
  }
}
async function take(from: AsyncGenerator<EventSourceMessage>, count: number): Promise<EventSourceMessage[]> {
  const taken: EventSourceMessage[] = []
  while (taken.length < count) taken.push((await from.next()).value as EventSourceMessage)
  return taken
}
const ids = (list: readonly EventSourceMessage[]): unknown[] => list.map((event) => event.id)

test('one stream shows run after run, what was and what comes, and ends with the session', async (t) => {
  const s = await streaming(t)
  const one = await s.begin('s1')
  await s.store.append(one, chunk(one, 1, [{ type: 'session_init', runtimeSessionId: 'vendor-1' }, text('a')]))
  await s.end(one, 3)
  const { events: stream } = await s.open('s1')
  const first = await take(stream, 2)
  assert.deepEqual(ids(first), ['1.2', '1.3'], 'the vendor handle is not shown')
  assert.deepEqual(
    first.map((event) => event.event),
    ['assistant', 'result'],
  )

  const two = await s.begin('s1')
  await s.store.append(two, chunk(two, 1, [text('b')]))
  const [live] = await take(stream, 1)
  assert.equal(live!.id, '2.1')
  assert.equal((JSON.parse(live!.data) as { runId: string }).runId, two.runId)
  await s.end(two, 2)
  assert.deepEqual(ids(await take(stream, 1)), ['2.2'])

  await s.store.shutdownSession('acme', 's1')
  s.wake('s1')
  assert.equal((await stream.next()).done, true)
})

test('Last-Event-ID resumes exactly behind any event of any run; garbage replays everything', async (t) => {
  const s = await streaming(t)
  for (let run = 0; run < 3; run++) {
    const claim = await s.begin('s1')
    await s.store.append(claim, chunk(claim, 1, [text('x'), text('y')]))
    await s.end(claim, 3)
  }
  await s.store.shutdownSession('acme', 's1')
  const all = ['1.1', '1.2', '1.3', '2.1', '2.2', '2.3', '3.1', '3.2', '3.3']
  for (const [i, id] of all.entries()) {
    const { events: stream } = await s.open('s1', { 'last-event-id': id })
    assert.deepEqual(ids(await Array.fromAsync(stream)), all.slice(i + 1), `behind ${id}`)
  }
  for (const id of ['', '7', '-1.2', '1.2.3', 'x'.repeat(500)]) {
    const { events: stream } = await s.open('s1', { 'last-event-id': id })
    assert.deepEqual(ids(await Array.fromAsync(stream)), all, `garbage ${JSON.stringify(id.slice(0, 9))}`)
  }
})

test('an unknown session and another tenant’s are the same 404; who leaves stops being woken', async (t) => {
  const s = await streaming(t)
  const claim = await s.begin('s1')
  for (const [id, headers] of [
    ['nope', {}],
    ['no%20id', {}],
    ['s1', { authorization: 'globex' }],
  ] as const) {
    const { response } = await s.open(id, headers)
    assert.equal(response.status, 404)
    assert.equal(((await response.json()) as { error: string }).error, 'not_found')
  }
  await s.store.append(claim, chunk(claim, 1, [text('a')]))
  const watcher = await s.open('s1')
  await take(watcher.events, 1)
  assert.equal(s.watching('s1'), 1)
  watcher.leave()
  while (s.watching('s1') > 0) await new Promise((resolve) => setImmediate(resolve))
})
