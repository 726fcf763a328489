import { setTimeout as sleep } from 'node:timers/promises'
import { tenantKey } from '#contracts/ids'
import { leastOf, overLimit } from '#contracts/limits'
import type { Replay } from '#contracts/replay'
import { calledStage } from '#contracts/run-event'
import type { RunnerSession, RunnerSessions } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import type { SessionSandbox, ToolContext, Toolkit, ToolResult } from '#contracts/tools'
import type { VfsManager } from '#contracts/vfs-manager'
import type { SandboxWorkers } from '#contracts/workers'
import { type Ahead, Pace } from '#kit'
import { callApp } from './apps.ts'
import { approvalTool } from '#contracts/approvals'
import { askFor, callOf, refusalOf } from './permissions.ts'
import { hasSandbox } from './sessions.ts'
import type { Run } from './run.ts'

/** The runs of this runner. */
interface RunsUnderWay {
  readonly ledgers: Ledgers
  /** The run under way in a session. */
  of(session: RunnerSession): Run | undefined
}

/** Concurrent tool calls per tenant. Further calls wait, each at most this many milliseconds. */
const pace = { atOnce: 20, longestMs: 30_000 } as const

/**
 * Calls tools on behalf of sessions. A session may call only its toolkit, calls stop with their run, and a retried run does not repeat them. Each
 * tenant gets at most its share, because a model issues calls as fast as they are answered.
 */
export function createToolCalls(
  toolkit: Toolkit,
  runs: RunsUnderWay,
  { sandboxes, vfs }: { readonly sandboxes: SandboxWorkers | undefined; readonly vfs: VfsManager | undefined },
  ahead: Ahead,
): RunnerSessions['invokeTool'] {
  const turns = new Pace(pace)
  const turn = async ({ tenantId, limits }: RunnerSession, signal: AbortSignal): Promise<void> => {
    const most = limits?.toolCallsPerMinute
    if (most === undefined) return
    ahead.works(tenantId)
    const now = Math.min(most, ahead.rateOf(tenantId, most, leastOf('toolCallsPerMinute')))
    const waitMs = turns.turnOf(tenantId, 60_000 / now)
    if (waitMs === undefined) throw overLimit('toolCallsPerMinute', most, pace.longestMs / 1_000, Math.floor(now))
    // If the run ends during the wait, the call proceeds and its tool sees the aborted signal.
    if (waitMs > 0) await sleep(waitMs, undefined, { signal, ref: false }).catch(() => {})
  }
  return async (session, name, input, signal, callId) => {
    const run = runs.of(session)
    if (name === approvalTool) return askFor(toolkit.delegations, { session, run, signal, callId }, input)
    const app = session.tools.includes(name) ? undefined : run?.apps?.get(name)
    if (!app && !session.tools.includes(name)) {
      throw runnerErrors.toolNotAllowed({ message: `The tool '${name}' is not in this session's toolkit.` })
    }
    const runId = session.activeRunId ?? ''
    const ledger = runId === '' ? undefined : runs.ledgers.of(session)
    // A cancelled run stops the tool that it waits for, whoever holds the connection. A broken connection does not stop the tool if the run will be
    // retried: the next attempt gets the result.
    const stop = !run ? signal : ledger ? run.signal : AbortSignal.any([signal, run.signal])
    await turn(session, stop)
    const { profile } = session
    const call = { name, input, callId }
    const refused = await refusalOf(toolkit.delegations, { session, run, signal: stop }, call)
    if (refused) return refused
    const sandbox: SessionSandbox = {
      call: (tool, given, timeoutMs) => sandboxes!.callTool(session, tool, given, { signal: stop, timeoutMs }),
      settleFiles: () => sandboxes!.settleFiles(session, stop),
    }
    const files = vfs?.of(session)
    const context: ToolContext = {
      tenantId: session.tenantId,
      sessionId: session.id,
      profileName: profile.name,
      ...(session.limits ? { limits: session.limits } : {}),
      ...(run?.skills ? { skills: run.skills } : {}),
      runId,
      depth: run?.depth ?? 0,
      signal: stop,
      // Outside a run the caller's id is unique across all runs.
      ...(callId === undefined ? {} : { idempotencyKey: runId === '' ? callId : `${runId}:${callId}` }),
      ...(run ? { report: run.report } : {}),
      ...(sandboxes && hasSandbox(profile) ? { sandbox } : {}),
      ...(files ? { vfs: files } : {}),
    }
    const invoke = (): Promise<ToolResult> => {
      run?.report({ type: 'progress', stage: calledStage })
      return app ? callApp(toolkit.delegations, app, input, context) : toolkit.invoke(name, input, context)
    }
    if (!ledger) return invoke()
    return ledger.call(name, input, callId, async () => {
      const result = await invoke()
      return { result, finished: result.ok || !stop.aborted }
    })
  }
}

/** Bytes of all ledgers of a runner together. Beyond that the least recently used ledger is dropped. */
const maxBytes = 64 * 1024 * 1024

interface Entry {
  readonly call: string
  readonly result: Promise<ToolResult | undefined>
  id: string | undefined
  /** The newest attempt that knows of the call. */
  attempt: number
  /** The result came with the replay. A runtime that continues after the replay already has it. */
  replayed: boolean
}

interface Outcome {
  readonly result: ToolResult
  /** False: the call was stopped, and whether it had an effect is unknown. */
  readonly finished: boolean
}

type SessionKey = Pick<RunnerSession, 'tenantId' | 'id'>
interface Attempt {
  readonly runId: string
  readonly attempt?: number
  readonly replay?: Replay
}

/** The ledgers of runs that may be executed again. Other runs have none. */
export class Ledgers {
  readonly #limit: number
  readonly #ledgers = new Map<string, Ledger>()
  #bytes = 0

  constructor(limit = maxBytes) {
    this.#limit = limit
  }

  /** The ledger of the run under way, or of the session's last one. */
  of({ tenantId, id }: SessionKey): Ledger | undefined {
    return this.#ledgers.get(tenantKey(tenantId, id))
  }
  /** Opens the next attempt of a run. Undefined when a later attempt was seen: this order comes from a conductor that has lost its claim. */
  open({ tenantId, id }: SessionKey, { runId, attempt = 1, replay = [] }: Attempt): Ledger | undefined {
    const key = tenantKey(tenantId, id)
    const former = this.#ledgers.get(key)
    if (former?.runId === runId && former.attempt > attempt) return undefined
    const ledger: Ledger =
      former?.runId === runId ? former : new Ledger(runId, (bytes) => this.#grew(key, ledger, bytes))
    if (ledger !== former) this.#drop(key)
    // Set the ledger again, so that it becomes the most recently used.
    this.#ledgers.delete(key)
    this.#ledgers.set(key, ledger)
    ledger.begin(attempt, replay)
    return ledger
  }
  drop({ tenantId, id }: SessionKey): void {
    this.#drop(tenantKey(tenantId, id))
  }
  #grew(key: string, ledger: Ledger, bytes: number): void {
    if (this.#ledgers.get(key) !== ledger) return
    this.#bytes += bytes
    for (const oldest of this.#ledgers.keys()) {
      if (this.#bytes <= this.#limit) return
      if (oldest !== key) this.#drop(oldest)
    }
  }
  #drop(key: string): void {
    this.#bytes -= this.#ledgers.get(key)?.bytes ?? 0
    this.#ledgers.delete(key)
  }
}

/** The tool calls of one run, across its attempts. */
export class Ledger {
  readonly runId: string
  readonly #onGrow: (bytes: number) => void
  readonly #entries: Entry[] = []
  /** The newest attempt. */
  attempt = 0
  /** The size of all results, in bytes. */
  bytes = 0

  constructor(runId: string, onGrow: (bytes: number) => void) {
    this.runId = runId
    this.#onGrow = onGrow
  }

  begin(attempt: number, replay: Replay): void {
    this.attempt = attempt
    const calls = new Map<string, string>()
    const unmatched = new Set(this.#entries)
    for (const event of replay) {
      if (event.type === 'tool_call') calls.set(event.id, callOf(event.name, event.arguments))
      const call = event.type === 'tool_result' ? calls.get(event.id) : undefined
      if (event.type !== 'tool_result' || call === undefined) continue
      const fits = [...unmatched].filter((entry) => entry.call === call)
      const known = fits.find((entry) => entry.id === event.id) ?? fits[0]
      if (known) {
        known.replayed = true
        unmatched.delete(known)
        continue
      }
      this.#grow(event.content.length)
      const result = Promise.resolve({ ok: event.ok, content: event.content })
      this.#entries.push({ call, result, id: event.id, attempt: attempt - 1, replayed: true })
    }
  }
  /**
   * Answers a call that an earlier attempt made with the result that it got or is about to get. Each recorded call answers once, in order; any
   * other call is executed. `id` is given by runtimes that continue after the replay, and never by those that begin again.
   */
  async call(
    name: string,
    input: unknown,
    id: string | undefined,
    execute: () => Promise<Outcome>,
  ): Promise<ToolResult> {
    const call = callOf(name, input)
    for (let known = this.#find(call, id); known; known = this.#find(call, id)) {
      known.attempt = this.attempt
      known.id = id
      const result = await known.result
      if (result) return result
      // The former call was stopped without a result, so this one is executed.
      this.#entries.splice(this.#entries.indexOf(known), 1)
    }
    const executing = execute()
    const result = executing.then(
      (outcome) => (outcome.finished ? outcome.result : undefined),
      () => undefined,
    )
    this.#entries.push({ call, result, id, attempt: this.attempt, replayed: false })
    const outcome = await executing
    if (outcome.finished) this.#grow(outcome.result.content.length)
    return outcome.result
  }
  /** The first matching entry of an earlier attempt: by its own id if there is one, otherwise by what was called. */
  #find(call: string, id: string | undefined): Entry | undefined {
    const fitting = this.#entries.filter(
      (entry) => entry.attempt < this.attempt && entry.call === call && (id === undefined || !entry.replayed),
    )
    return fitting.find((entry) => entry.id === id) ?? fitting[0]
  }
  #grow(by: number): void {
    this.bytes += by
    this.#onGrow(by)
  }
}
