import { delegationStage } from '#contracts/delegation'
import type { Prices } from '#contracts/prices'
import { hasStamp, parseLine, peekType, type Usage } from '#contracts/run-event'
import type { LogChunk } from '#contracts/runs'
import { createSandboxUseReader, createUsageTally, type SandboxUse } from '#contracts/usage'
import { type Ending, endingOf } from './ending.ts'
import type { Past } from './past.ts'

/** What a run must remember, of all its attempts. */
export interface RunMemory {
  readonly usage: Usage | undefined
  toolCalls: number
  runtimeSessionId: string | undefined
  /** Undefined: none of its attempts had a sandbox so far. */
  readonly sandbox: SandboxUse | undefined
  used(event: Readonly<Record<string, unknown>>): void
  /** Every line of it, in order, until it `isPast` those that say something of a sandbox. */
  saw(line: Buffer, seq: number): void
  isPast(seq: number): boolean
  /** What a run that was taken over has in its log. */
  recall(past: Past): void
}

export function createRunMemory(prices: Prices | undefined): RunMemory {
  const tally = createUsageTally(prices)
  const sandboxes = createSandboxUseReader()
  let recalled: SandboxUse | undefined
  return {
    get usage() {
      return tally.usage
    },
    get sandbox() {
      return recalled ?? sandboxes.use
    },
    saw: sandboxes.read,
    isPast: sandboxes.isPast,
    toolCalls: 0,
    runtimeSessionId: undefined,
    used: (event) => tally.add(event),
    recall(past) {
      for (const event of past.usage) tally.add(event)
      this.toolCalls += past.toolCalls
      recalled = past.sandbox
      this.runtimeSessionId = past.runtimeSessionId
    },
  }
}

/** Takes over what a runner streams: passes lines on as they are and parses only what the run must remember. */
export interface RunnerEvents {
  /** Whole lines in; what may be passed on, and the ending when it was among them. Nothing is read after an ending. */
  read(bytes: Buffer): {
    readonly passed: LogChunk | undefined
    readonly ending: Ending | undefined
    /** A tool call or its result is in it: what must not happen twice. */
    readonly tools: boolean
    /** A tool waits for a run of another profile: the runner knows which. */
    readonly delegates: boolean
  }
}

const maxCode = 128
const maxMessage = 4_000
const delegation = Buffer.from(`"stage":"${delegationStage}"`)
const broken: Ending = endingOf('runner_protocol')

export function createRunnerEvents(runId: string, firstSeq: number, memory: RunMemory): RunnerEvents {
  let seq = firstSeq
  const understand = (type: string, line: Buffer): Ending | undefined => {
    const event = parseLine(line)
    if (!event) return broken
    if (type === 'session_init') {
      if (typeof event['runtimeSessionId'] === 'string') memory.runtimeSessionId = event['runtimeSessionId']
      return undefined
    }
    if (type === 'usage') {
      memory.used(event)
      return undefined
    }
    const withEnd = Buffer.from(line.buffer, line.byteOffset, line.length + 1)
    if (type === 'result') return { status: 'ok', result: text(event['text']), line: withEnd }
    return {
      status: 'error',
      // The log has all of it; a summary is in lists.
      code: text(event['code'], 'runtime').slice(0, maxCode),
      message: text(event['message']).slice(0, maxMessage),
      line: withEnd,
    }
  }
  return {
    read(bytes) {
      const first = seq
      let start = 0
      let tools = false
      let delegates = false
      let ending: Ending | undefined
      while (start < bytes.length) {
        const end = bytes.indexOf(0x0a, start)
        // Twenty of these for every other line: nothing has to be remembered of a delta.
        if (end > 0 && seq > firstSeq && memory.isPast(seq) && isDelta(bytes, start)) {
          seq++
          start = end + 1
          continue
        }
        const line = bytes.subarray(start, end < 0 ? bytes.length : end)
        const type = end < 0 ? undefined : peekType(line)
        if (type === undefined) ending = broken
        // The first stamp proves that runner and conductor count alike; from then on lines are counted.
        else if (seq === firstSeq && !hasStamp(line, runId, seq)) ending = broken
        else if (type === 'session_init' || type === 'usage' || type === 'result' || type === 'error')
          ending = understand(type, line)
        if (ending) break
        memory.saw(line, seq)
        if (type === 'tool_call') memory.toolCalls++
        if (type === 'tool_call' || type === 'tool_result') tools = true
        else if (type === 'progress' && line.includes(delegation)) delegates = true
        seq++
        start = end + 1
      }
      const count = seq - first
      const passed = count === 0 ? undefined : { firstSeq: first, count, lines: bytes.subarray(0, start) }
      return { passed, ending, tools, delegates }
    },
  }
}

const deltaHead = Buffer.from('{"type":"assistant","')
const isDelta = (bytes: Buffer, start: number): boolean =>
  bytes.compare(deltaHead, 0, deltaHead.length, start, start + deltaHead.length) === 0

const text = (value: unknown, fallback = ''): string => (typeof value === 'string' ? value : fallback)
