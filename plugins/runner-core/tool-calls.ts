import { createHash } from 'node:crypto'
import type { Replay } from '#contracts/replay'
import type { RunnerSession, RunnerSessions } from '#contracts/runner'
import type { SessionSandbox, ToolContext, Toolkit, ToolResult } from '#contracts/tools'
import type { SandboxWorkers } from '#contracts/workers'
import { toolNotAllowed } from './errors.ts'
import { hasSandbox } from './links.ts'
import type { Turn } from './turn.ts'

/** Calls tools on behalf of sessions: only those of their toolkit, stopped with their run, and not twice in a run that is tried again. */
export const createToolCalls =
  (
    toolkit: Toolkit,
    turnOf: (session: RunnerSession) => Turn | undefined,
    ledgers: Ledgers,
    sandboxes: SandboxWorkers | undefined,
  ): RunnerSessions['invokeTool'] =>
  async (session, name, input, signal, callId) => {
    if (!session.tools.includes(name)) {
      throw toolNotAllowed({ message: `The tool '${name}' is not in this session's toolkit.` })
    }
    const turn = turnOf(session)
    const runId = session.activeRunId ?? ''
    const ledger = runId === '' ? undefined : ledgers.of(session)
    // A cancelled run stops the tool it is waiting for, whoever holds the connection. A connection that breaks under a run
    // that is tried again stops nothing: the next attempt gets the result.
    const stop = !turn ? signal : ledger ? turn.signal : AbortSignal.any([signal, turn.signal])
    const { profile } = session
    const context: ToolContext = {
      tenantId: session.tenantId,
      sessionId: session.id,
      profileName: profile.name,
      skills: profile.skills,
      runId,
      depth: turn?.depth ?? 0,
      signal: stop,
      ...(runId === '' || callId === undefined ? {} : { idempotencyKey: `${runId}:${callId}` }),
      ...(turn ? { report: turn.report } : {}),
      ...(sandboxes && hasSandbox(profile) ? { sandbox: sandboxOf(sandboxes, session, stop) } : {}),
    }
    if (!ledger) return toolkit.invoke(name, input, context)
    return ledger.call(name, input, callId, async () => {
      const result = await toolkit.invoke(name, input, context)
      return { result, finished: result.ok || !stop.aborted }
    })
  }

const sandboxOf = (sandboxes: SandboxWorkers, session: RunnerSession, signal: AbortSignal): SessionSandbox => ({
  call: (name, input, timeoutMs) => sandboxes.callTool(session, name, input, { signal, timeoutMs }),
})

/** All ledgers of a runner together; the one that rested longest goes first. */
const maxBytes = 64 * 1024 * 1024

interface Entry {
  readonly call: string
  readonly result: Promise<ToolResult | undefined>
  id: string | undefined
  /** The attempt that knows of it. */
  attempt: number
  /** Its result came with the replay: whoever goes on behind it has it already. */
  replayed: boolean
}

/** The tool calls of one run, across its attempts. */
export interface Ledger {
  readonly runId: string
  readonly attempt: number
  /**
   * Answers a call that a former attempt has made, with the result it got or is about to get; each answers once, in order.
   * Any other call is executed. `id` is given by runtimes that go on behind the replay, and never by those that do the turn again.
   */
  call(name: string, input: unknown, id: string | undefined, execute: () => Promise<Outcome>): Promise<ToolResult>
}

export interface Outcome {
  readonly result: ToolResult
  /** False: it was stopped, and whether it has happened is not known. */
  readonly finished: boolean
}

export interface SessionKey {
  readonly tenantId: string
  readonly id: string
}
export interface Attempt {
  readonly runId: string
  readonly attempt?: number
  readonly replay?: Replay
}

/** The ledgers of runs that are tried again when they crash. Others have none, and pay nothing. */
export interface Ledgers {
  /** Opens the next attempt of a run. Undefined when a later attempt of it was seen: this one comes from somebody who was given up. */
  open(session: SessionKey, run: Attempt): Ledger | undefined
  /** The ledger of the run under way, or of the session's last one. */
  of(session: SessionKey): Ledger | undefined
  drop(session: SessionKey): void
}

export function createLedgers(limit = maxBytes): Ledgers {
  const books = new Map<string, Book>()
  let total = 0
  const keyOf = ({ tenantId, id }: SessionKey): string => `${tenantId}\n${id}`
  const drop = (key: string): void => {
    total -= books.get(key)?.bytes ?? 0
    books.delete(key)
  }
  return {
    of: (session) => books.get(keyOf(session)),
    drop: (session) => drop(keyOf(session)),
    open(session, { runId, attempt = 1, replay = [] }) {
      const key = keyOf(session)
      const former = books.get(key)
      if (former?.runId === runId && former.attempt > attempt) return undefined
      const book = former?.runId === runId ? former : createBook(runId)
      if (book !== former) drop(key)
      // Set again, so that it is the youngest.
      books.delete(key)
      books.set(key, book)
      book.onGrow = (bytes) => {
        if (books.get(key) !== book) return
        total += bytes
        for (const oldest of books.keys()) {
          if (total <= limit) return
          if (oldest !== key) drop(oldest)
        }
      }
      book.begin(attempt, replay)
      return book
    },
  }
}

interface Book extends Ledger {
  attempt: number
  readonly bytes: number
  onGrow: (bytes: number) => void
  begin(attempt: number, replay: Replay): void
}

function createBook(runId: string): Book {
  const entries: Entry[] = []
  let bytes = 0
  const grow = (by: number): void => {
    bytes += by
    book.onGrow(by)
  }
  /** The first entry of a former attempt that fits: by its own id if there is one, else by what was called. */
  const find = (call: string, id: string | undefined): Entry | undefined => {
    const fitting = entries.filter(
      (entry) => entry.attempt < book.attempt && entry.call === call && (id === undefined || !entry.replayed),
    )
    return fitting.find((entry) => entry.id === id) ?? fitting[0]
  }
  const book: Book = {
    runId,
    attempt: 0,
    onGrow: () => {},
    get bytes() {
      return bytes
    },
    begin(attempt, replay) {
      book.attempt = attempt
      const calls = new Map<string, string>()
      const unmatched = new Set(entries)
      for (const event of replay) {
        if (event.type === 'tool_call') calls.set(event.id, callOf(event.name, event.arguments))
        const call = event.type === 'tool_result' ? calls.get(event.id) : undefined
        if (event.type !== 'tool_result' || call === undefined) continue
        const fits = [...unmatched].filter((entry) => entry.call === call)
        const known = fits.find((entry) => entry.id === event.id) ?? fits[0]
        if (known) unmatched.delete(known)
        else grow(event.content.length)
        const result = Promise.resolve({ ok: event.ok, content: event.content })
        const entry = known ?? { call, result, id: event.id, attempt: attempt - 1, replayed: true }
        entry.replayed = true
        if (!known) entries.push(entry)
      }
    },
    async call(name, input, id, execute) {
      const call = callOf(name, input)
      for (let known = find(call, id); known; known = find(call, id)) {
        known.attempt = book.attempt
        known.id = id
        const result = await known.result
        if (result) return result
        // It was stopped before anybody knew how it went.
        entries.splice(entries.indexOf(known), 1)
      }
      const executing = execute()
      const result = executing.then(
        (outcome) => (outcome.finished ? outcome.result : undefined),
        () => undefined,
      )
      const entry: Entry = { call, result, id, attempt: book.attempt, replayed: false }
      entries.push(entry)
      const outcome = await executing
      if (outcome.finished) grow(outcome.result.content.length)
      return outcome.result
    },
  }
  return book
}

const callOf = (name: string, input: unknown): string =>
  createHash('sha256')
    .update(JSON.stringify([name, sorted(input ?? {})]))
    .digest('base64')

/** The same arguments in another order are the same. */
const sorted = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, item]) => [key, sorted(item)]),
  )
}
