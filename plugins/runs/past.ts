import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { linesOf } from '#kernel'
import { type Replay, type Turns, turnsContentType } from '#contracts/replay'
import { lastSeqOf, parseLine, peekType } from '#contracts/run-event'
import type { Claim, PastRun, RunStore } from '#contracts/run-store'
import type { StateBundle } from '#contracts/runtime'
import type { LogChunk } from '#contracts/runs'
import { createSandboxUseReader, type SandboxUse } from '#contracts/usage'

/** What the stored log of a run says to those who go on with it. */
export interface Past {
  readonly lastSeq: number
  readonly replay: Replay
  /** Of what the replay holds, about. */
  readonly bytes: number
  /** The first of the trailing texts: what said it was cut off and is done again. */
  readonly cutFrom: number | undefined
  /** The conversation handle that was reported last. */
  readonly runtimeSessionId: string | undefined
  /** Bodies of the `usage` events, in order. */
  readonly usage: readonly Record<string, unknown>[]
  readonly toolCalls: number
  readonly sandbox: SandboxUse | undefined
}

type Item = Replay[number]

/** How soon a log that cannot be read is tried again. */
const retryMs = 500

interface PastDeps {
  readonly store: RunStore
  readonly log: FastifyBaseLogger
  readonly givingUp: AbortSignal
}

/** Reads the log of a run and sorts out what is finished, again until it can be read. Undefined: that was given up. */
export async function readPast(deps: PastDeps, { tenantId, runId }: Claim): Promise<Past | undefined> {
  const { store, log, givingUp } = deps
  while (!givingUp.aborted) {
    try {
      return await readOnce(store, tenantId, runId)
    } catch (err) {
      log.warn({ err, runId }, 'the log of a run could not be read; trying again')
      await sleep(retryMs, undefined, { signal: givingUp }).catch(() => {})
    }
  }
  return undefined
}

async function readOnce(store: RunStore, tenantId: string, runId: string): Promise<Past> {
  const reader = createReader()
  let lastSeq = 0
  for (;;) {
    const page = await store.readLog(tenantId, runId, lastSeq)
    const end = page?.chunks.at(-1)
    if (!page || !end) break
    for (const chunk of page.chunks) reader.read(chunk)
    lastSeq = lastSeqOf(end)
  }
  return { lastSeq, ...reader.past() }
}

/** More than any prompt holds: older turns are left out. */
const mostTurnBytes = 2 * 1024 * 1024
/** What came with the prompts: as much as one run may bring, twice. */
const mostInputBytes = 12 * 1024 * 1024

/**
 * The conversation of a run whose runtime is restored from the log: what the ends of its earlier runs have committed, newest
 * first until there is enough. Undefined: it has none.
 */
export async function readTurns(store: RunStore, claim: Claim): Promise<StateBundle | undefined> {
  const turns: Turns['turns'] = []
  let bytes = 0
  let inputBytes = 0
  reading: for await (const page of store.pastRuns(claim)) {
    for (const run of page) {
      const { log, prompt, input } = run
      bytes += log.reduce((sum, { lines }) => sum + lines.length, prompt.length)
      inputBytes += JSON.stringify(input ?? null).length
      if (turns.length > 0 && (bytes > mostTurnBytes || inputBytes > mostInputBytes)) break reading
      turns.unshift(turnOf(run))
    }
  }
  if (turns.length === 0) return undefined
  return { bytes: Buffer.from(JSON.stringify({ turns })), contentType: turnsContentType }
}

function turnOf({ runId, status, prompt, input, metadata, model, log }: PastRun): Turns['turns'][number] {
  const reader = createReader(true)
  for (const chunk of log) reader.read(chunk)
  const rest = reader.rest()
  const { replay } = reader.past()
  return {
    runId,
    prompt,
    ...(input?.attachments ? { attachments: input.attachments } : {}),
    ...(metadata ? { metadata } : {}),
    ...(model === undefined ? {} : { model }),
    replay: rest === '' ? replay : [...replay, { type: 'assistant', text: rest, delta: true }],
    ...(status === 'ok' ? {} : { error: true }),
  }
}

/** `turn`: of a run that is over. Its answers that were refused are no part of the conversation; what it said before is. */
function createReader(turn = false) {
  /** Of a runtime that did the turn again: what it has not come to again is finished all the same. */
  let earlier: Item[] = []
  let items: Item[] = []
  let text = ''
  let cutFrom: number | undefined
  let bytes = 0
  let toolCalls = 0
  let answer = ''
  let runtimeSessionId: string | undefined
  const sandboxes = createSandboxUseReader()
  const usage: Record<string, unknown>[] = []
  const cut = (): void => {
    text = ''
    cutFrom = undefined
  }
  const keep = (): void => {
    // What was said before a tool call is finished: the call ends its step.
    if (text !== '') items.push({ type: 'assistant', text, delta: true })
    cut()
  }
  const readers: Readonly<Record<string, (event: Record<string, unknown>, seq: number) => void>> = {
    assistant(event, seq) {
      text += String(event['text'])
      cutFrom ??= seq
    },
    tool_call({ id, name, arguments: given }) {
      keep()
      toolCalls++
      items.push({ type: 'tool_call', id: String(id), name: String(name), arguments: given })
      earlier = without(earlier, String(name), given)
    },
    tool_result({ id, name, ok, content }) {
      keep()
      items.push({ type: 'tool_result', id: String(id), name: String(name), ok: ok === true, content: String(content) })
    },
    progress({ stage }) {
      if (stage === 'retrying') cut()
      if (stage === 'output_invalid') {
        // What was said is no part of the answer; what was done is done.
        cut()
        if (!turn) items = items.filter(({ type }) => type !== 'assistant')
      }
      if (stage !== 'repeated') return
      cut()
      earlier = [...earlier, ...items.filter(({ type }) => type !== 'assistant')]
      items = []
    },
    usage: (event) => void usage.push(event),
    result(event) {
      answer = String(event['text'])
    },
    session_init(event) {
      runtimeSessionId = String(event['runtimeSessionId'])
    },
  }
  return {
    read(chunk: LogChunk) {
      let seq = chunk.firstSeq
      for (const line of linesOf(chunk.lines)) {
        sandboxes.read(line, seq)
        const read = readers[peekType(line) ?? '']
        const event = read && parseLine(line)
        if (event) {
          bytes += line.length
          read(event, seq)
        }
        seq++
      }
    },
    /** What was said last, before the run ended; a runtime need not have streamed it. */
    rest: (): string => text || answer,
    past: (): Omit<Past, 'lastSeq'> => ({
      replay: [...items, ...earlier],
      bytes,
      cutFrom,
      runtimeSessionId,
      usage,
      toolCalls,
      sandbox: sandboxes.use,
    }),
  }
}

/** The items but for one call of this name and arguments, and its result. */
function without(items: Item[], name: string, given: unknown): Item[] {
  const same = JSON.stringify(given)
  const call = items.find((i) => i.type === 'tool_call' && i.name === name && JSON.stringify(i.arguments) === same)
  if (call?.type !== 'tool_call') return items
  const result = items.find((item) => item.type === 'tool_result' && item.id === call.id)
  return items.filter((item) => item !== call && item !== result)
}
