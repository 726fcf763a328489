import { setTimeout as sleep } from 'node:timers/promises'
import { type AppError, isAppError } from '#kernel'
import { hashOfSession } from '#contracts/ids'
import type { McpServers } from '#contracts/mcp-servers'
import { substrateOf } from '#contracts/profiles'
import type { Claim, DurableSession, RunStore } from '#contracts/run-store'
import type { ExecuteRun, RunnerLink, RunnerPool } from '#contracts/runner'
import { restoredFromLog } from '#contracts/runtime'
import { hydrationFailed } from './errors.ts'
import { readTurns } from './past.ts'

/** The runner certainly did nothing: another one may be asked. */
export const tookNothing = (error: unknown): boolean => isAppError(error) && error.status === 503 && error.retryable

/** The runner's claim on a session may outlive ours by the time an aborted stream takes to reach it. */
const busyRetryMs = 2_000

export interface RunnerStreamDeps {
  readonly store: RunStore
  readonly runners: RunnerPool
  readonly mcpServers: McpServers | undefined
}

/** What placement has to know of a profile: its runtime, its pool, and where its sandboxes are. */
export function placementOf({ runtime, placement, ...profile }: DurableSession['profile']) {
  const substrate = substrateOf(profile)
  return {
    runtime,
    ...(placement ? { pool: placement } : {}),
    ...(substrate === undefined ? {} : { substrate }),
  }
}

/** The runners of one run: where an attempt is executed, and where one that is under way is read on. */
export class RunnerStream {
  readonly #deps: RunnerStreamDeps
  readonly #claim: Claim
  readonly #session: DurableSession
  /** The runner that was chosen for a new session, which its first attempt creates there. */
  readonly #placed: RunnerLink | undefined
  readonly #signal: AbortSignal
  /** The runner that took the run last, as soon as one has. */
  runner: RunnerLink | undefined
  /** The conversation is being brought to a runner. */
  restoring = false

  constructor(
    deps: RunnerStreamDeps,
    claim: Claim,
    session: DurableSession,
    placed: RunnerLink | undefined,
    signal: AbortSignal,
  ) {
    this.#deps = deps
    this.#claim = claim
    this.#session = session
    this.#placed = placed
    this.#signal = signal
  }

  /**
   * Executes an attempt; tried again, on another runner if need be, only as long as nothing of it was seen. Rejects with an
   * AppError as long as no runner has taken it. `fresh`: the session has no conversation and no runner yet.
   */
  async *execute(run: ExecuteRun, fresh: boolean): AsyncGenerator<Buffer> {
    const body = await this.#withServers(run)
    const tried = new Set<string>()
    const busyUntil = Date.now() + busyRetryMs
    let link = this.#route(tried)
    let hydrated = fresh
    for (let taken = false; ;) {
      try {
        if (!hydrated && link.hash !== this.#newestAt) {
          await this.#hydrate(link, true)
          hydrated = true
        }
        for await (const bytes of link.execute(this.#claim.tenantId, body, this.#signal)) {
          this.runner = link
          taken = true
          yield bytes
        }
        return
      } catch (error) {
        if (taken || this.#signal.aborted || !isAppError(error)) throw error
        if (error.code === 'unknown_session' && !hydrated) {
          await this.#hydrate(link, false)
          hydrated = true
        } else if (error.code === 'session_busy' && Date.now() < busyUntil) {
          await sleep(25, undefined, { signal: this.#signal })
        } else if (tookNothing(error)) {
          link = this.#another(tried.add(link.hash), error)
          hydrated = fresh
        } else throw error
      }
    }
  }

  /** Reads on behind what is stored, wherever the run is executed. Ends at once, without a line, when no runner has it. */
  async *attach(afterSeq: number): AsyncGenerator<Buffer> {
    const { tenantId, sessionId, runId, epoch } = this.#claim
    const { runners } = this.#deps
    const first = runners.owner(sessionId, this.#session.runner)
    for (const link of new Set([...(first ? [first] : []), ...runners.all()])) {
      try {
        for await (const bytes of link.attach(tenantId, { sessionId, runId, afterSeq, epoch }, this.#signal)) {
          this.runner = link
          yield bytes
        }
        if (this.runner === link) return
      } catch (error) {
        // One that is away, or never had it, tells nothing of the others.
        if (this.runner === link || this.#signal.aborted || !isAppError(error)) throw error
      }
    }
  }

  /** Any other runner than this one has an old copy of the conversation, or none. */
  get #newestAt(): string | undefined {
    return this.#session.runner ?? hashOfSession(this.#session.id)
  }
  /** Throws `no_runner` when there is none. */
  #route(without: ReadonlySet<string>): RunnerLink {
    const { runners } = this.#deps
    const { id: sessionId, profile, runner } = this.#session
    const order = placementOf(profile)
    if (this.#placed) return without.size === 0 ? this.#placed : runners.place({ ...order, without })
    return runners.home({ sessionId, ...order, ...(runner === undefined ? {} : { runner }), without })
  }
  /** What the first runner said tells more than that there is no second one. */
  #another(tried: ReadonlySet<string>, error: AppError): RunnerLink {
    try {
      return this.#route(tried)
    } catch {
      throw error
    }
  }
  async #hydrate(link: RunnerLink, replace: boolean): Promise<void> {
    const { store } = this.#deps
    const { tenantId, sessionId } = this.#claim
    const { profile, stateRev } = this.#session
    this.restoring = true
    try {
      const bundle = restoredFromLog(profile.runtime)
        ? await readTurns(store, this.#claim)
        : stateRev > 0
          ? await store.loadState(tenantId, sessionId)
          : undefined
      await link.hydrate(tenantId, sessionId, profile, bundle, replace)
    } catch (cause) {
      if (isAppError(cause) && cause.status < 500) throw cause
      throw hydrationFailed({ cause, retryable: tookNothing(cause) })
    } finally {
      this.restoring = false
    }
  }
  /** Looked up for each attempt: what a server is sent may have changed, and is stored nowhere with the run. */
  async #withServers(body: ExecuteRun): Promise<ExecuteRun> {
    const { mcpServers } = this.#deps
    const names = this.#session.profile.mcpServers
    if (!mcpServers || names.length === 0) return body
    return { ...body, mcpServers: [...(await mcpServers.resolve(this.#claim.tenantId, names))] }
  }
}
