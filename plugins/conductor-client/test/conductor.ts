import assert from 'node:assert/strict'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import type { TestContext } from 'node:test'
import { createEventEncoder, type LogChunk, type RuntimeEvent } from '#contracts/run-event'
import type { RunDispatch } from '#contracts/runs'
import type { SignedParts, Signer } from '#contracts/signing'
import { createRemoteDispatch } from '../index.ts'
import { conductorPeers } from '../peer.ts'

export interface Seen {
  readonly method: string
  readonly url: string
  readonly headers: IncomingMessage['headers']
  readonly body: Buffer
}
export type Answer = (seen: Seen, response: ServerResponse) => void

export interface FakeConductor {
  url: string
  readonly seen: Seen[]
  answer: Answer
  /** Connections it has accepted so far. */
  readonly connections: number
  /** Stops listening and cuts every connection; `start` listens on the same port again. */
  stop(): Promise<void>
  start(): Promise<void>
}

/** An HTTP server in the place of the conductor's internal listener; the test writes its answers. */
export async function fakeConductor(t: TestContext): Promise<FakeConductor> {
  let connections = 0
  const seen: Seen[] = []
  const server = createServer((request, response) => {
    void buffer(request).then((body) => {
      const one = { method: request.method!, url: request.url!, headers: request.headers, body }
      seen.push(one)
      conductor.answer(one, response)
    })
  })
  server.keepAliveTimeout = 60_000
  server.on('connection', () => connections++)
  let port = 0
  const conductor: FakeConductor = {
    url: '',
    seen,
    answer: (_seen, response) => json(response, 404, { error: 'not_found' }),
    get connections() {
      return connections
    },
    stop: () =>
      new Promise((resolve) => {
        if (!server.listening) return resolve()
        server.close(() => resolve())
        server.closeAllConnections()
      }),
    start: () =>
      new Promise((resolve) => {
        server.listen(port, '127.0.0.1', () => {
          port = (server.address() as AddressInfo).port
          conductor.url = `http://127.0.0.1:${port}`
          resolve()
        })
      }),
  }
  await conductor.start()
  t.after(() => conductor.stop())
  return conductor
}

export function json(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

export const sessionId = 'sess-0a1b2c3d-00000001'

/** Begins the NDJSON answer of a run or of its event log. */
export function beginLog(response: ServerResponse, status: 200 | 202, runId: string): ServerResponse {
  response.writeHead(status, {
    'content-type': 'application/x-ndjson',
    'x-run-id': runId,
    'x-session-id': sessionId,
  })
  response.flushHeaders()
  return response
}

/** The lines of events `from` and on, numbered from 1. */
export function linesFrom(runId: string, events: readonly RuntimeEvent[], from = 1): string {
  const encoder = createEventEncoder(runId, sessionId, 1, () => 0)
  return events
    .map((event) => encoder.line(event))
    .slice(from - 1)
    .join('')
}

/** Signs by writing down what it was given. */
export function recordingSigner(): Signer & { readonly signed: SignedParts[] } {
  const signed: SignedParts[] = []
  return {
    signed,
    hasPreviousKey: true,
    sign(parts, key = 'CURRENT') {
      signed.push({ ...parts, body: Buffer.from(parts.body) })
      const headers = { 'x-chat-gateway-tenant': parts.tenant, 'x-chat-gateway-nonce': `n${signed.length}` }
      return { ...headers, 'x-chat-gateway-key-id': key }
    },
    verify: async () => ({ tenant: 'acme' }),
  }
}

export const signal = new AbortController().signal
export const say = (text: string): RuntimeEvent => ({ type: 'assistant', text, delta: true })
/** Nine deltas and a result. */
export const events: RuntimeEvent[] = [
  ...Array.from({ length: 9 }, (_, i) => say(`text ${i}`)),
  { type: 'result', text: 'all', finishReason: 'stop' },
]
export const task = { id: 'run_1', profile: 'p', prompt: 'Grüße' }

/** The dispatch under test, talking to `conductor`. */
export function client(t: TestContext, conductor: FakeConductor, signer = recordingSigner()): RunDispatch {
  const peers = conductorPeers(signer)
  t.after(() => peers.close())
  // Enough for two repetitions: no test waits for a conductor that restarts.
  return createRemoteDispatch(peers.at(conductor.url), {}, 500)
}

/** Joins chunks, checking that they follow one another. */
export async function logOf(chunks: AsyncIterable<LogChunk>, after = 0): Promise<string> {
  let text = ''
  let seq = after
  for await (const { firstSeq, count, lines } of chunks) {
    assert.equal(firstSeq, seq + 1)
    seq += count
    text += lines.toString('utf8')
  }
  return text
}
