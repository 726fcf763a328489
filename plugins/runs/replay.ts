import { Value } from '@sinclair/typebox/value'
import type { FastifyBaseLogger } from 'fastify'
import { linesOf } from '#kernel'
import { ObjectLink } from '#contracts/linked-objects'
import { type Replay, type Turns, turnsContentType } from '#contracts/replay'
import { lastSeqOf, type LogChunk, parseLine, peekType } from '#contracts/run-event'
import { resumedStage } from '#contracts/approvals'
import type { Recall } from '#contracts/memory'
import type { Claim, PastRun, RunStore } from '#contracts/run-store'
import type { StateBundle } from '#contracts/runtime'
import { retry } from '#kit'
import type { RunLinks } from './links.ts'
import type { RunUsage } from './usage.ts'

type Item = Replay[number]

/** Milliseconds until a log that cannot be read is tried again. */
const retryMs = 500

interface ReplayDeps {
  readonly store: RunStore
  readonly log: FastifyBaseLogger
  readonly givingUp: AbortSignal
}

/**
 * Reads the log of a run, retrying until it succeeds, and returns the finished parts. Undefined: the reading was given up. `usage` is updated with
 * the usage in the log and with the cost of delegated runs.
 */
export async function readReplay(
  deps: ReplayDeps,
  { tenantId, runId }: Claim,
  usage?: RunUsage,
): Promise<ReplayReader | undefined> {
  const { store, log, givingUp } = deps
  const reader = new ReplayReader({ usage })
  const readOn = async (): Promise<ReplayReader> => {
    for (;;) {
      givingUp.throwIfAborted()
      const page = await store.readLog(tenantId, runId, reader.lastSeq)
      if (!page || page.chunks.length === 0) {
        if (usage) for (const cost of await store.delegatedCents(tenantId, runId)) usage.delegated(...cost)
        return reader
      }
      for (const chunk of page.chunks) reader.read(chunk)
    }
  }
  const mayPass = (err: unknown): boolean => {
    log.warn({ err, runId }, 'the log of a run could not be read; trying again')
    return true
  }
  // Rejects only when the caller gives up.
  return retry(readOn, { firstMs: retryMs, longestMs: retryMs, signal: givingUp, mayPass }).catch(() => undefined)
}

/** More than any prompt holds. Beyond it the oldest turns are left out. */
const mostTurnBytes = 2 * 1024 * 1024
/** Bytes that came with the prompts: twice what one run may bring. */
const mostInputBytes = 12 * 1024 * 1024

/**
 * The conversation of a run whose runtime is restored from the log: the committed turns of earlier runs, newest first until there is enough.
 * Undefined: there are none. With `recall`, messages begin with the memories that were recalled for them.
 */
export async function readTurns(
  { store, links }: { readonly store: RunStore; readonly links: RunLinks },
  claim: Claim,
  recall: Recall | undefined,
): Promise<StateBundle | undefined> {
  const turns: Turns['turns'] = []
  let bytes = 0
  let inputBytes = 0
  reading: for await (const page of store.pastRuns(claim)) {
    for (const run of page) {
      const { log, prompt, input } = run
      bytes += log.reduce((sum, { lines }) => sum + lines.length, prompt.length)
      inputBytes += JSON.stringify(input ?? null).length
      if (turns.length > 0 && (bytes > mostTurnBytes || inputBytes > mostInputBytes)) break reading
      const turn = turnOf(run)
      const replay = await links.whole({ ...claim, runId: run.runId }, turn.replay)
      turns.unshift({ ...turn, replay })
    }
  }
  if (turns.length === 0) return undefined
  const runIds = turns.map(({ runId }) => runId)
  const recalled = await recall?.chosen(claim.tenantId, runIds)
  for (const turn of turns) {
    const before = recalled?.get(turn.runId)
    if (before) turn.prompt = `${before}\n\n${turn.prompt}`
  }
  return { bytes: Buffer.from(JSON.stringify({ turns })), contentType: turnsContentType }
}

function turnOf({ runId, status, prompt, input, metadata, model, log }: PastRun): Turns['turns'][number] {
  const reader = new ReplayReader({ isTurn: true })
  for (const chunk of log) reader.read(chunk)
  // Retention deletes a log from its beginning, a long one over several transactions. What is left of it may be the end of a text, or the result of a
  // call that is gone: of such a run only the answer is left.
  const isCut = log.length > 0 && log[0]!.firstSeq > 1
  const replay = isCut ? [] : reader.replay
  const rest = isCut ? reader.answer : reader.rest
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

type Parsed = Record<string, unknown>

/** Reads the stored log of a run for what the next attempt must know. */
class ReplayReader {
  lastSeq = 0
  /** The approximate size of the replay in bytes. */
  bytes = 0
  /** How many times the run resumed after it had waited for people. */
  resumes = 0
  /** The `seq` of the first trailing text: it was cut off and will be generated again. */
  cutFrom: number | undefined
  readonly #isTurn: boolean
  readonly #usage: RunUsage | undefined
  /** Items from before a runtime restarted the turn. Those that the runtime has not repeated yet count as finished all the same. */
  #earlier: Item[] = []
  #items: Item[] = []
  #text = ''
  /** The text of the result. */
  answer = ''
  readonly #readers: Readonly<Record<string, (event: Parsed, seq: number) => void>> = {
    assistant: ({ text }, seq) => {
      this.#text += String(text)
      this.cutFrom ??= seq
    },
    tool_call: ({ id, name, arguments: given }) => {
      this.#keep({ type: 'tool_call', id: String(id), name: String(name), arguments: given })
      this.#earlier = without(this.#earlier, String(name), given)
    },
    tool_result: ({ id, name, ok, content, link }) => {
      const linked = Value.Check(ObjectLink, link) ? { truncated: true, link } : {}
      if (linked.link) this.bytes += linked.link.bytes
      this.#keep({
        type: 'tool_result',
        id: String(id),
        name: String(name),
        ok: ok === true,
        content: String(content),
        ...linked,
      })
    },
    progress: ({ stage }) => this.#progressed(stage),
    result: ({ text }) => {
      this.answer = String(text)
    },
  }

  /** `isTurn`: the run is over. Its refused answers are not part of the conversation, but the texts before them are. */
  constructor({ isTurn = false, usage }: { isTurn?: boolean; usage?: RunUsage | undefined }) {
    this.#isTurn = isTurn
    this.#usage = usage
  }

  get replay(): Replay {
    return [...this.#items, ...this.#earlier]
  }
  /** The last text before the run's end, which a runtime need not have streamed. */
  get rest(): string {
    return this.#text || this.answer
  }
  read(chunk: LogChunk): void {
    let seq = chunk.firstSeq
    for (const line of linesOf(chunk.lines)) {
      const type = peekType(line)
      this.#usage?.read(type, line, seq)
      const read = this.#readers[type ?? '']
      const event = read && parseLine(line)
      if (event) {
        this.bytes += line.length
        read(event, seq)
      }
      seq++
    }
    this.lastSeq = lastSeqOf(chunk)
  }

  /** Adds an item. A text before a tool call is finished, because the call ends its step. */
  #keep(item: Item): void {
    if (this.#text !== '') this.#items.push({ type: 'assistant', text: this.#text, delta: true })
    this.#items.push(item)
    this.#cut()
  }
  #cut(): void {
    this.#text = ''
    this.cutFrom = undefined
  }
  #progressed(stage: unknown): void {
    if (stage === resumedStage) this.resumes++
    if (stage !== 'retrying' && stage !== 'output_invalid' && stage !== 'repeated') return
    this.#cut()
    const done = this.#items.filter(({ type }) => type !== 'assistant')
    // The refused text is not part of the answer. The tool calls before it stay.
    if (stage === 'output_invalid' && !this.#isTurn) this.#items = done
    if (stage !== 'repeated') return
    this.#earlier = [...this.#earlier, ...done]
    this.#items = []
  }
}

/** The items without one call of this name and arguments, and without its result. */
function without(items: Item[], name: string, given: unknown): Item[] {
  const same = JSON.stringify(given)
  const call = items.find((i) => i.type === 'tool_call' && i.name === name && JSON.stringify(i.arguments) === same)
  if (call?.type !== 'tool_call') return items
  const result = items.find((item) => item.type === 'tool_result' && item.id === call.id)
  return items.filter((item) => item !== call && item !== result)
}
