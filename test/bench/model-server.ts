// A stand-in model server: OpenAI chat completions over SSE, its answers encoded before the first request, so that what is
// measured is the path to it. Its own process. The model's name says what it streams: `burst-20` (20 deltas at once),
// `tick-20` (one packet per delta, without delay), `slow-12` (one delta per second, each carrying its send time). `delegate-14` gives
// one task to the profile `delegating`, then 14 at once, round after round, and then streams a burst.
import { randomUUID } from 'node:crypto'
import { createServer, type ServerResponse } from 'node:http'
import { announce } from './processes.ts'

const slowTickMs = 50
/** Deltas per write of a long answer: about what a TCP read of a fast server carries. */
const perWrite = 128

const chunk = (delta: object, finish: string | null = null): string =>
  `data: ${JSON.stringify({
    id: 'chatcmpl-1',
    object: 'chat.completion.chunk',
    created: 1760000000,
    model: 'stand-in',
    choices: [{ index: 0, delta, finish_reason: finish }],
  })}\n\n`
const word = (n: number): string => `word${String(n % 1000).padStart(3, '0')} `
const opening = Buffer.from(chunk({ role: 'assistant', content: '' }))
const usage = JSON.stringify({ prompt_tokens: 10, completion_tokens: 20, total_tokens: 30 })
const closing = Buffer.from(
  `${chunk({}, 'stop')}data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1760000000,"model":"stand-in","choices":[],"usage":${usage}}\n\ndata: [DONE]\n\n`,
)

/** The writes of each answer by the model's name, made once. */
const encoded = new Map<string, readonly Buffer[]>()
function writesOf(kind: string, count: number): readonly Buffer[] {
  const key = `${kind}-${count}`
  const known = encoded.get(key)
  if (known) return known
  const size = kind === 'tick' ? 1 : perWrite
  const writes: Buffer[] = []
  for (let at = 0; at < count; at += size) {
    const deltas = Array.from({ length: Math.min(size, count - at) }, (_, i) => chunk({ content: word(at + i) }))
    writes.push(Buffer.from(deltas.join('')))
  }
  writes[0] = Buffer.concat([opening, writes[0] ?? Buffer.alloc(0)])
  writes.push(closing)
  const whole = kind === 'burst' && count <= perWrite ? [Buffer.concat(writes)] : writes
  encoded.set(key, whole)
  return whole
}

/** How often an agent that delegates many tasks does it in one run. */
const rounds = 3
/** How many tasks it gives next; 0: it answers. One first: if all that may be open at once were at one level, no tree would be deep. */
function tasksAfter(body: string, many: number): number {
  const answers = body.split('"role":"tool"').length - 1
  // At the bottom of its tree, where it cannot go on, it makes room for others.
  if (answers > rounds * many || body.includes('delegationDepth')) return 0
  return answers === 0 ? 1 : many
}
const delegated = (count: number): Buffer => {
  const call = (index: number): object => ({
    index,
    id: `call_${randomUUID()}`,
    type: 'function',
    function: { name: 'delegate', arguments: JSON.stringify({ profile: 'delegating', prompt: 'Delegate this.' }) },
  })
  return Buffer.concat([
    opening,
    Buffer.from(chunk({ tool_calls: Array.from({ length: count }, (_, i) => call(i)) })),
    Buffer.from(`${chunk({}, 'tool_calls')}data: [DONE]\n\n`),
  ])
}

const modelInBody = /"model":"([a-z]+)-(\d+)"/
const server = createServer((request, response) => {
  const parts: Buffer[] = []
  request.on('data', (part: Buffer) => parts.push(part))
  request.on('end', () => {
    // The model is named first. The rest of megabytes is left unread: one tenant's long request must not keep another's waiting here.
    const [, kind, count] = modelInBody.exec(parts[0]?.toString('latin1', 0, 1_000) ?? '') ?? []
    if (request.method !== 'POST' || kind === undefined) {
      response.writeHead(404, { 'content-type': 'application/json' }).end('{"error":{"message":"unknown model"}}')
      return
    }
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' })
    if (kind === 'delegate') {
      const tasks = tasksAfter(Buffer.concat(parts).toString('latin1'), Number(count))
      if (tasks > 0) response.end(delegated(tasks))
      else flood(response, writesOf('burst', 20), 0)
    } else if (kind === 'slow') addSlow(response, Number(count))
    else if (kind === 'tick') tick(response, writesOf(kind, Number(count)), 0)
    else flood(response, writesOf(kind, Number(count)), 0)
  })
})

function flood(response: ServerResponse, writes: readonly Buffer[], from: number): void {
  for (let at = from; at < writes.length; at++) {
    if (response.destroyed) return
    if (!response.write(writes[at]) && at + 1 < writes.length) {
      response.once('drain', () => flood(response, writes, at + 1))
      return
    }
  }
  response.end()
}

function tick(response: ServerResponse, writes: readonly Buffer[], at: number): void {
  if (response.destroyed) return
  if (at === writes.length) {
    response.end()
    return
  }
  const more = response.write(writes[at])
  // A turn of the loop between two writes makes each its own packet (Nagle is off on HTTP sockets).
  if (more) setImmediate(tick, response, writes, at + 1)
  else response.once('drain', () => tick(response, writes, at + 1))
}

// Slow streams share one timer wheel, so that a thousand of them cost the stand-in almost nothing.
const wheel: Set<{ response: ServerResponse; left: number }>[] = Array.from(
  { length: 1000 / slowTickMs },
  () => new Set(),
)
let slot = 0
/** Streams that open together are spread over the second. */
let nextSlot = 0
function addSlow(response: ServerResponse, count: number): void {
  response.write(opening)
  const stream = { response, left: count }
  nextSlot = (nextSlot + 1) % wheel.length
  const spoke = wheel[nextSlot] ?? new Set()
  spoke.add(stream)
  response.on('close', () => spoke.delete(stream))
}
setInterval(() => {
  slot = (slot + 1) % wheel.length
  const at = performance.timeOrigin + performance.now()
  const delta = Buffer.from(chunk({ content: `${at.toFixed(1)} ` }))
  for (const stream of wheel[slot] ?? []) {
    stream.response.write(delta)
    if (--stream.left === 0) stream.response.end(closing)
  }
}, slowTickMs)

server.keepAliveTimeout = 120_000
server.listen(0, '127.0.0.1', () => announce(server))
