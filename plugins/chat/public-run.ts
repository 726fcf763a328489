import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { Counter, Gauge, type Registry } from 'prom-client'
import { isAppError, sseFrame, type StreamEnd } from '#kernel'
import { approvalStage } from '#contracts/approvals'
import type { Database } from '#contracts/database'
import { publicMessageOf } from '#contracts/endings'
import { replayedHeader } from '#contracts/idempotency'
import { endOf, lastSeqOf, type LogChunk, parseLine } from '#contracts/run-event'
import type { RunDispatch } from '#contracts/runs'
import { chatErrors, invalidKey, unreachable } from './errors.ts'

// A public run as its clients see it: its ids, its row, and its events as SSE frames. The conductor writes the row with the
// run's start and with its end, in the same commits; the gateway reads it.

interface RunIds {
  readonly publicRunId: string
  readonly conversationId: string
}

export interface PublicRun extends RunIds {
  readonly tenantId: string
  readonly publishedId: string
  readonly runId: string
}

/** How a public run ended, in the form that clients may see. */
export interface Outcome {
  readonly status: 'ok' | 'error' | 'lost'
  /** The answer, or a sentence that tells the client what went wrong. */
  readonly message: string
  /** The `seq` of the terminal event; 0 when there was none. */
  readonly seq: number
}

export interface StoredRun extends PublicRun {
  readonly status: 'dispatching' | 'running' | Outcome['status']
  /** Undefined while the run is open. */
  readonly outcome: Outcome | undefined
}

export const bodyIds = ({ publicRunId, conversationId }: RunIds) => ({
  public_run_id: publicRunId,
  conversation_id: conversationId,
})

/** `replayed`: an earlier request with the same key began the run. */
export type NamedRun = RunIds & { readonly replayed?: boolean }

/** Headers that name a run, so that a reconnecting client knows the run before the first event. */
export const idHeaders = ({ publicRunId, conversationId, replayed }: NamedRun) => ({
  'x-public-run-id': publicRunId,
  'x-conversation-id': conversationId,
  ...(replayed ? replayedHeader : {}),
})

const byId = {
  name: 'chat-run',
  text: `SELECT run.tenant_id AS "tenantId", run.id AS "publicRunId", run.published_id AS "publishedId",
           run.conversation_id AS "conversationId", run.run_id AS "runId", run.status, run.last_seq AS seq,
           coalesce(answer.content, '') AS message
         FROM public_runs run
         LEFT JOIN messages answer
           ON answer.tenant_id = run.tenant_id AND answer.public_run_id = run.id AND answer.role = 'assistant'
         WHERE run.tenant_id = $1 AND run.id = $2`,
}

type RunRow = PublicRun & Pick<Outcome, 'seq' | 'message'> & Pick<StoredRun, 'status'>

export async function findRun(database: Database, tenantId: string, id: string): Promise<StoredRun | undefined> {
  const [row] = await database.unit<RunRow>(tenantId, { ...byId, values: [tenantId, id] })
  if (!row) return undefined
  const { seq, message, status, ...run } = row
  const isOpen = status === 'dispatching' || status === 'running'
  return { ...run, status, outcome: isOpen ? undefined : { status, message, seq } }
}

/** A constant of the wire format as words of four bytes; the last two may overlap. Comparing and writing go word by word. */
type Constant = { readonly length: number; readonly words: Int32Array }
function constant(text: string): Constant {
  const bytes = Buffer.from(text)
  const { length } = bytes
  const at = (_: unknown, i: number): number => bytes.readInt32LE(Math.min(4 * i, length - 4))
  return { length, words: Int32Array.from({ length: Math.ceil(length / 4) }, at) }
}
function isAt(view: DataView, at: number, { length, words }: Constant): boolean {
  if (at < 0 || at + length > view.byteLength) return false
  const last = words.length - 1
  for (let i = 0; i < last; i++) if (view.getInt32(at + 4 * i, true) !== words[i]) return false
  return view.getInt32(at + length - 4, true) === words[last]
}
/** Writes the constant, and returns the offset behind it. */
function put(view: DataView, at: number, { length, words }: Constant): number {
  const last = words.length - 1
  for (let i = 0; i < last; i++) view.setInt32(at + 4 * i, words[i]!, true)
  view.setInt32(at + length - 4, words[last]!, true)
  return at + length
}
const viewOf = ({ buffer, byteOffset, length }: Buffer): DataView => new DataView(buffer, byteOffset, length)

const newline = 0x0a
const quote = 0x22
const backslash = 0x5c
// The bytes around the text of a delta, as `createEventEncoder` writes them, and those of the SSE frame that the text moves into, which is shorter.
const mark = ',"text":"'
const delta = {
  head: constant('{"type":"assistant","runId":"'),
  mark: constant(mark),
  tail: constant('","delta":true}\n'),
}
const frame = { id: constant('id: '), data: constant('\nevent: delta\ndata: {"text":"'), tail: constant('"}\n\n') }
/** The text begins within this many bytes, both in the line of a delta and in its frame. */
const headBytes = 512

/**
 * The client's view of the events of `chunk`: SSE frames of specification 4.21.1 with the event's seq as their id, followed by `last`. The terminal
 * event is left out, because its frame names the public run.
 */
export const encodeFrames = (chunk: LogChunk, exposeToolEvents: boolean, last = ''): Buffer =>
  // A line in another form may look like a delta that runs into the next line. The line count then differs, and the slow way is taken.
  framesOf(chunk, exposeToolEvents, last, true) ?? framesOf(chunk, exposeToolEvents, last, false)!

/** `moving`: a delta in canonical form has its text as JSON already, so the text is copied byte by byte. Undefined when this merged two lines. */
function framesOf(chunk: LogChunk, exposeToolEvents: boolean, last: string, moving: boolean): Buffer | undefined {
  const { lines, firstSeq, count } = chunk
  const size = lines.length
  const view = viewOf(lines)
  const bytes = Buffer.allocUnsafe(size + headBytes)
  const out = viewOf(bytes)
  let length = 0
  const parts: Buffer[] = []
  let joined = 0
  let seq = firstSeq
  let id: Buffer = Buffer.from(String(seq))
  /** Where the text begins in a delta's line, without the digits of its seq. The offset is the same in every delta of a run. */
  let textAt = 0
  for (let start = 0, next = 0; start < size; start = next, id = after(id, ++seq)) {
    if (moving && isAt(view, start, delta.head)) {
      if (!isAt(view, start + textAt + id.length - mark.length, delta.mark)) {
        textAt = lines.subarray(start, start + headBytes).indexOf(mark) + mark.length - id.length
      }
      let at = start + textAt + id.length
      let to = put(out, length, frame.id)
      for (let i = 0; i < id.length; i++) bytes[to++] = id[i]!
      to = put(out, to, frame.data)
      for (; at < size; at++) {
        const byte = lines[at]!
        // JSON escapes control characters, so a byte that would end an SSE line cannot be part of the text.
        if (byte === quote || byte < 0x20) break
        bytes[to++] = byte
        if (byte === backslash) bytes[to++] = lines[++at]!
      }
      if (isAt(view, at, delta.tail)) {
        length = put(out, to, frame.tail)
        next = at + delta.tail.length
        continue
      }
    }
    const end = lines.indexOf(newline, start)
    next = end < 0 ? size : end + 1
    const text = frameOf(lines.subarray(start, end < 0 ? size : end), seq, exposeToolEvents)
    if (text === '') continue
    parts.push(bytes.subarray(joined, length), Buffer.from(text))
    joined = length
  }
  if (moving && seq !== firstSeq + count) return undefined
  const rest = bytes.subarray(joined, length)
  return parts.length === 0 && last === '' ? rest : Buffer.concat([...parts, rest, Buffer.from(last)])
}

/** The digits of `seq`, derived from the digits of the previous number. */
function after(digits: Buffer, seq: number): Buffer {
  if (seq % 10 === 0) return Buffer.from(String(seq))
  digits[digits.length - 1]!++
  return digits
}

/** Lines that clients do not see, recognized by their first bytes. */
const silent = ['{"type":"usage"', '{"type":"session_init"', '{"type":"result"', '{"type":"error"']

/** Marks an event that says that a tool call waits for a person. */
const waiting = `"stage":"${approvalStage}"`

function frameOf(line: Buffer, seq: number, exposeToolEvents: boolean): string {
  const head = line.toString('latin1', 0, 24)
  if (silent.some((one) => head.startsWith(one))) return ''
  const isWaiting = exposeToolEvents && line.includes(waiting)
  if (head.startsWith('{"type":"progress"') && !isWaiting && !line.includes('"supersedes":')) return ''
  const event = parseLine(line)
  if (event?.['type'] === 'assistant') return sseFrame('delta', JSON.stringify({ text: event['text'] }), seq)
  // The run is repeated from this event on. A client that shows text as it arrives removes that part.
  if (event?.['type'] === 'progress' && typeof event['supersedes'] === 'number') {
    return sseFrame('superseded', JSON.stringify({ from: event['supersedes'] }), seq)
  }
  if (!exposeToolEvents) return ''
  if (event?.['stage'] === approvalStage && event['type'] === 'progress') {
    const { id, name } = (event['approval'] ?? {}) as { id?: unknown; name?: unknown }
    return sseFrame('tool', JSON.stringify({ id, name, status: 'waiting' }), seq)
  }
  if (event?.['type'] === 'tool_call') {
    return sseFrame('tool', JSON.stringify({ id: event['id'], name: event['name'], status: 'running' }), seq)
  }
  if (event?.['type'] === 'tool_result') {
    return sseFrame('tool', JSON.stringify({ id: event['id'], status: event['ok'] === true ? 'ok' : 'error' }), seq)
  }
  return ''
}

/** The terminal event, if `chunk` ends with one. */
export function terminalEvent(chunk: LogChunk): Record<string, unknown> | undefined {
  const end = endOf(chunk)
  return end && parseLine(end.lines)
}

/** The outcome that a terminal event stands for. It hides the error's text, which may name providers, addresses or sessions. */
function outcomeOf(event: Readonly<Record<string, unknown>>, seq: number): Outcome {
  const text = (value: unknown): string => (typeof value === 'string' ? value : '')
  return event['type'] === 'error'
    ? { status: 'error', message: publicMessageOf(text(event['code'])), seq }
    : { status: 'ok', message: text(event['text']), seq }
}

/** The one terminal frame of a public run. Specification 4.21.1. */
function terminalFrame(ids: RunIds, { status, message, seq }: Outcome): string {
  const id = seq > 0 ? seq : undefined
  if (status === 'ok') return sseFrame('done', JSON.stringify({ ...bodyIds(ids), message }), id)
  return sseFrame(
    'error',
    JSON.stringify({ code: chatErrors.upstream.row.code, message, public_run_id: ids.publicRunId }),
    id,
  )
}

/** Tells a client that only the stream ended here, not the run. The client resumes with `Last-Event-ID`. */
const closing = ': closing\n\n'
/** Tells a reader that its key is no longer valid. This ends the reader's stream; the run continues. */
const revoked = ({ publicRunId }: RunIds): string => {
  const { code, message } = invalidKey()
  return sseFrame('error', JSON.stringify({ code, message, public_run_id: publicRunId }))
}
/** Milliseconds between two looks for a run that the conductor does not know yet. */
const lookAgainMs = 300
/** The `seq` of a log's first event. A run that no runner took has no other event. */
const acceptedSeq = 1
/** The outcome for a reader of a run that another request began and that was taken back before anybody was told that it is accepted. */
const takenBack: Outcome = { status: 'error', message: unreachable, seq: 0 }

/** How a run ended, or why its end was not waited for here. */
export type Told = Outcome | 'unreachable' | 'stopping'

/** SSE frames of one run. The last is its terminal frame, or a comment that only the stream is over. Returns the outcome. */
export type Frames = AsyncGenerator<Buffer | string, Told>

export interface Reading {
  readonly afterSeq: number
  readonly exposeToolEvents: boolean
  /** The run's events after `afterSeq`, if they are at hand. Otherwise the conductor is asked for them. */
  readonly events?: AsyncIterable<LogChunk> | undefined
  /** How the run ended. If given, it is sent at once instead of the events. */
  readonly over?: Outcome | undefined
}

interface Dependencies {
  readonly database: Database
  readonly dispatch: RunDispatch
  readonly log: FastifyBaseLogger
  readonly registry: Registry
}

/** Reads the logs of runs for clients. It holds only a cursor per reader: a client that disconnects ends its reading, not the run. */
export function createFollower({ database, dispatch, log, registry }: Dependencies) {
  let size = 0
  const registers = [registry]
  const terminal = new Counter({
    name: 'chat_gateway_run_terminal_total',
    help: 'Public runs that ended, by the event that announced the end.',
    labelNames: ['status'],
    registers,
  })
  new Gauge({
    name: 'chat_gateway_watcher_active',
    help: 'Public runs that this process follows.',
    registers,
    collect() {
      this.set(size)
    },
  })
  // A lost run counts as an error.
  const ended = ({ status }: Outcome): void => terminal.inc({ status: status === 'ok' ? 'done' : 'error' })
  return {
    // A single generator from the conductor's chunks to the socket, because every layer costs a delta some microtasks.
    async *frames(run: PublicRun, reading: Reading, signal: AbortSignal): Frames {
      const { tenantId, publicRunId, runId } = run
      let { events, afterSeq } = reading
      if (reading.over) {
        yield terminalFrame(run, reading.over)
        return reading.over
      }
      let told: Told = 'stopping'
      size++
      try {
        for (let begun = false; !begun; events = undefined) {
          try {
            for await (const chunk of events ?? dispatch.follow(tenantId, runId, afterSeq, signal)) {
              const event = terminalEvent(chunk)
              afterSeq = lastSeqOf(chunk)
              if (event) {
                // The terminal event was stored in one commit with the public run and its message, so it can be sent at once.
                const outcome = outcomeOf(event, afterSeq)
                ended(outcome)
                yield encodeFrames(chunk, reading.exposeToolEvents, terminalFrame(run, outcome))
                return outcome
              }
              const frames = encodeFrames(chunk, reading.exposeToolEvents)
              if (frames.length > 0) yield frames
            }
            // The log ended before the run did: the conductor is stopping, or no runner took the run.
            begun = signal.aborted || afterSeq > acceptedSeq
          } catch (error) {
            if (signal.aborted || !isAppError(error) || error.code !== 'not_found') throw error
          }
          if (begun) break
          // The conductor does not know the run yet, or never will. The row of the run says when it is over; a run that was taken back has no row.
          const row = await findRun(database, tenantId, publicRunId)
          const outcome = row ? row.outcome : takenBack
          if (outcome) {
            ended(outcome)
            yield terminalFrame(run, outcome)
            return outcome
          }
          await sleep(lookAgainMs, undefined, { signal })
        }
      } catch (err) {
        if (!signal.aborted) {
          if (!isAppError(err)) throw err
          log.warn({ err, code: err.code, publicRunId }, 'chat.start_watcher_failed')
          told = 'unreachable'
        }
      } finally {
        size--
      }
      const why = signal.reason as StreamEnd | undefined
      if (why === 'revoked') yield revoked(run)
      else if (why !== 'client_gone') yield closing
      return told
    },
  }
}

export type Follower = ReturnType<typeof createFollower>
