import { type Static, type TObject, type TProperties, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { ObjectLink } from './linked-objects.ts'
import { sidecarErrors } from './sidecar-errors.ts'

/** The event types of specification 2.8. */
export const eventTypes = [
  'progress',
  'session_init',
  'assistant',
  'tool_call',
  'tool_result',
  'usage',
  'result',
  'error',
] as const
export type EventType = (typeof eventTypes)[number]

// Objects are open: a newer runtime may add fields, and every hop must pass them on.
const open = <T extends TProperties>(properties: T): TObject<T> =>
  Type.Object(properties, { additionalProperties: true })

export const ProgressEvent = open({
  type: Type.Literal('progress'),
  stage: Type.String(),
  message: Type.Optional(Type.String()),
  /** In stage `retrying`: the number of the attempt that begins. */
  attempt: Type.Optional(Type.Integer()),
  /** The text from this seq up to this event is not part of the answer: its attempt or step was interrupted, and the text is generated again. */
  supersedes: Type.Optional(Type.Integer()),
  /** In stage `mcp_server_unavailable`: the server whose tools the run lacks. */
  server: Type.Optional(Type.String()),
  /** In stage `context_trimmed`: how many turns were left out of the prompt, and how many results were cut. */
  droppedTurns: Type.Optional(Type.Integer()),
  cutResults: Type.Optional(Type.Integer()),
  /** In stage `unsaid_tool_calls`: how many tool calls the runner saw and the worker did not report. */
  count: Type.Optional(Type.Integer()),
  /** In stage `approval_waiting`: the call that waits for a person. */
  approval: Type.Optional(
    Type.Object({
      approvalId: Type.String(),
      /** The id of the call, as in its `tool_call` event if the runtime names its calls. */
      id: Type.String(),
      name: Type.String(),
    }),
  ),
  /** In stage `delegation`: the run of another profile that a tool of this run has started, and how it ended. */
  delegation: Type.Optional(
    Type.Object({
      id: Type.String(),
      runId: Type.String(),
      profile: Type.String(),
      state: Type.Union([Type.Literal('started'), Type.Literal('ended')]),
      ok: Type.Optional(Type.Boolean()),
      status: Type.Optional(Type.String()),
      costCents: Type.Optional(Type.Number()),
    }),
  ),
})
/**
 * The stage by which a runner counts a call that it executes, and the stage by which it reports, at the end of a run, calls that the worker did not
 * report.
 */
export const calledStage = 'tool_called'
export const unsaidCallsStage = 'unsaid_tool_calls'
/** The stage by which a log says that retention has deleted the events before it. Only the terminal event follows. */
export const logDeletedStage = 'log_deleted'
const SessionInitEvent = open({ type: Type.Literal('session_init'), runtimeSessionId: Type.String() })
/** A chunk of model text. All chunks of a run joined are its text. */
export const AssistantEvent = open({ type: Type.Literal('assistant'), text: Type.String(), delta: Type.Literal(true) })
export const ToolCallEvent = open({
  type: Type.Literal('tool_call'),
  id: Type.String(),
  name: Type.String(),
  arguments: Type.Unknown(),
})
export const ToolResultEvent = open({
  type: Type.Literal('tool_result'),
  id: Type.String(),
  name: Type.String(),
  ok: Type.Boolean(),
  content: Type.String(),
  /** The content is only the beginning; the whole text is behind the link. The conductor writes both fields. */
  truncated: Type.Optional(Type.Boolean()),
  link: Type.Optional(ObjectLink),
})
export const UsageEvent = open({
  type: Type.Literal('usage'),
  inputTokens: Type.Integer(),
  outputTokens: Type.Integer(),
  cachedTokens: Type.Optional(Type.Integer()),
  model: Type.String(),
  costCents: Type.Optional(Type.Number()),
  knownCostCents: Type.Optional(
    Type.Number({
      description: 'For a run with calls of unknown price, which has no `costCents`: the cost of the other calls.',
    }),
  ),
  estimated: Type.Optional(
    Type.Boolean({
      description: 'The model server did not report it: estimated from the bytes and the time of a call.',
    }),
  ),
})
/** The final answer. Ends the run as `ok`. */
const ResultEvent = open({
  type: Type.Literal('result'),
  text: Type.String(),
  finishReason: Type.String(),
  /** The value of the answer, for a task with `responseFormat`. */
  output: Type.Optional(Type.Unknown()),
})
/** A failure that ends the run as `error`. If the conductor wrote it for that reason, the run ends as `cancelled` or `interrupted`. */
export const ErrorEvent = open({
  type: Type.Literal('error'),
  code: Type.String(),
  message: Type.String(),
  retryable: Type.Optional(Type.Boolean()),
})

/** An event as a runtime yields it, without stamps. */
export const RuntimeEvent = Type.Union([
  ProgressEvent,
  SessionInitEvent,
  AssistantEvent,
  ToolCallEvent,
  ToolResultEvent,
  UsageEvent,
  ResultEvent,
  ErrorEvent,
])
export type RuntimeEvent = Static<typeof RuntimeEvent>
export type UsageEvent = Static<typeof UsageEvent>
export type Usage = Omit<UsageEvent, 'type'>

/** Events that arrived together; at least one. */
export type EventBatch = readonly (RuntimeEvent | Texts)[]
/** The texts of consecutive `assistant` events, without an object for each. */
export type Texts = readonly string[]

export const isTexts = (item: RuntimeEvent | Texts): item is Texts => Array.isArray(item)
/** The events of a batch, one by one. */
export const eventsOf = (batch: EventBatch): RuntimeEvent[] =>
  batch.flatMap((item) => (isTexts(item) ? item.map((text) => ({ type: 'assistant', text, delta: true })) : [item]))

/** The stamp of an event that is sent and stored: `type, runId, sessionId, seq, at`, then the payload. `seq` counts from 1 within a run. */
export interface EventStamp {
  readonly runId: string
  readonly sessionId: string
  readonly seq: number
  /** ISO 8601 UTC. */
  readonly at: string
}
export type RunEvent = RuntimeEvent & EventStamp

/**
 * Writes stamped lines in the canonical field order (`type` first), on which later hops rely to pass lines without parsing. Use one encoder per run
 * and hop. `next` is the seq of the next line.
 */
export interface EventEncoder {
  readonly next: number
  line(event: RuntimeEvent): string
  /** One `assistant` line per text. */
  texts(texts: Texts): string
}

export function createEventEncoder(
  runId: string,
  sessionId: string,
  firstSeq: number,
  now: () => number = Date.now,
): EventEncoder {
  const middle = `","runId":${JSON.stringify(runId)},"sessionId":${JSON.stringify(sessionId)},"seq":`
  const textHead = `{"type":"assistant${middle}`
  const nextText = `${textEnd}${textHead}`
  let seq = firstSeq
  let ms = Number.NaN
  let at = ''
  const stamp = (): string => {
    const time = now()
    if (time !== ms) {
      ms = time
      at = new Date(time).toISOString()
    }
    return at
  }
  return {
    get next() {
      return seq
    },
    line(event) {
      if (event.type === 'assistant') return this.texts([event.text])
      const { type, ...payload } = event
      // Serialize before taking the stamp: a payload that cannot be serialized must not leave a gap.
      const body = JSON.stringify(payload)
      const head = `{"type":"${type}${middle}${seq++},"at":"${stamp()}"`
      return body === '{}' ? `${head}}\n` : `${head},${body.slice(1)}\n`
    },
    texts(texts) {
      const before = `,"at":"${stamp()}","text":"`
      let lines = ''
      // The hot case is joined by hand from few pieces, because each piece is an object until the string becomes bytes.
      for (const text of texts) lines += (lines === '' ? textHead : nextText) + seq++ + before + quoted(text)
      return lines === '' ? '' : lines + textEnd
    },
  }
}
const textEnd = '","delta":true}\n'

/** A text as JSON writes it between quotes. Most deltas are short and need no escapes. */
function quoted(text: string): string {
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i)
    const plain = code >= 0x20 && code !== 0x22 && code !== 0x5c && (code < 0xd800 || code > 0xdfff)
    if (!plain || i === longScan) return JSON.stringify(text).slice(1, -1)
  }
  return text
}
/** For longer texts JSON.stringify is faster. */
const longScan = 64

const prefix = Buffer.from('{"type":"')

/** The type of a line, from its first bytes. Only a line in non-canonical order is parsed. Undefined: the line is no event. */
export function peekType(line: Buffer): EventType | undefined {
  if (line.length > prefix.length && line.compare(prefix, 0, prefix.length, 0, prefix.length) === 0) {
    const end = line.indexOf(0x22, prefix.length)
    const type = line.toString('latin1', prefix.length, end < 0 ? prefix.length : end)
    if (isEventType(type)) return type
  }
  const type = (parseLine(line) as { type?: unknown } | undefined)?.type
  return typeof type === 'string' && isEventType(type) ? type : undefined
}

/** True when the line has the stamp `seq` in the canonical position, so that it can be passed on unchanged. */
export function hasStamp(line: Buffer, runId: string, seq: number): boolean {
  const at = line.indexOf('"runId":"')
  if (at < 0 || at > 40) return false
  const head = line.toString('utf8', at, Math.min(line.length, at + 400))
  return head.startsWith(`"runId":"${runId}","sessionId":"`) && head.includes(`","seq":${seq},"at":"`)
}

const isEventType = (type: string): type is EventType => (eventTypes as readonly string[]).includes(type)

/** The parsed line, or undefined when it is not a JSON object. */
export function parseLine(line: Buffer): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(line.toString('utf8'))
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined
  } catch {
    return undefined
  }
}

/**
 * Reads an event of a sidecar that does not stamp its lines, and fills in the fields that the specification lets it leave out.
 * Undefined when the line is no event. `answer` gives the text of the run so far, for a `result` without text.
 */
export function readUnstamped(line: Record<string, unknown>, answer: () => string): RuntimeEvent | undefined {
  const { runId: _run, sessionId: _session, seq: _seq, at: _at, ...event } = line
  const type = String(event['type'])
  const filled = { ...defaults.get(type), ...event }
  if (type === 'result' && filled['text'] === undefined) filled['text'] = answer()
  return Value.Check(RuntimeEvent, filled) ? filled : undefined
}

const unexplained = sidecarErrors.sidecarError.row

/** The fields that such a sidecar may leave out, because the specification only demands `type`. */
const defaults: ReadonlyMap<string, Record<string, unknown>> = new Map([
  ['progress', { stage: 'sidecar' }],
  ['assistant', { delta: true }],
  ['tool_call', { arguments: {} }],
  ['tool_result', { ok: true, name: '', content: '' }],
  ['usage', { inputTokens: 0, outputTokens: 0, model: '' }],
  ['result', { finishReason: 'stop' }],
  ['error', { code: unexplained.code, message: unexplained.message }],
])

export const isTerminalType = (type: string | undefined): type is 'result' | 'error' =>
  type === 'result' || type === 'error'

/** Consecutive events of one run as bytes: `count` NDJSON lines, the first with stamp `firstSeq`. */
export interface LogChunk {
  readonly firstSeq: number
  readonly count: number
  readonly lines: Buffer
}

export const lastSeqOf = (chunk: LogChunk): number => chunk.firstSeq + chunk.count - 1

/** The part of a chunk after `seq`, without copying. Undefined when there is none. */
export function after(chunk: LogChunk, seq: number): LogChunk | undefined {
  const skip = seq + 1 - chunk.firstSeq
  if (skip <= 0) return chunk
  if (skip >= chunk.count) return undefined
  let start = 0
  for (let i = 0; i < skip; i++) start = chunk.lines.indexOf(0x0a, start) + 1
  return { firstSeq: chunk.firstSeq + skip, count: chunk.count - skip, lines: chunk.lines.subarray(start) }
}

/** Joins consecutive chunks into one. Undefined when there are none. */
export function join(chunks: readonly LogChunk[]): LogChunk | undefined {
  const first = chunks[0]
  if (!first || chunks.length === 1) return first
  return {
    firstSeq: first.firstSeq,
    count: chunks.reduce((sum, chunk) => sum + chunk.count, 0),
    lines: Buffer.concat(chunks.map((chunk) => chunk.lines)),
  }
}

/** The terminal event of a chunk that ends its log, without copying. Undefined for any other chunk. */
export function endOf(chunk: LogChunk): LogChunk | undefined {
  const end = chunk.lines.length - 1
  const lines = chunk.lines.subarray(chunk.lines.lastIndexOf(0x0a, end - 1) + 1)
  const isEnd = isTerminalType(peekType(lines.subarray(0, -1)))
  return isEnd ? { firstSeq: lastSeqOf(chunk), count: 1, lines } : undefined
}
/** Whether a chunk ends its log. */
export const endsLog = (chunk: LogChunk): boolean => endOf(chunk) !== undefined
