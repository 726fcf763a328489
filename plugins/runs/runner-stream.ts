import { setTimeout as sleep } from 'node:timers/promises'
import { type AppError, isAppError } from '#kernel'
import { type Apps, endUserOf } from '#contracts/apps'
import type { Egress } from '#contracts/egress'
import { hashOfSession } from '#contracts/ids'
import { limitErrors, type LimitName } from '#contracts/limits'
import type { McpServers } from '#contracts/mcp-servers'
import type { Recall } from '#contracts/memory'
import { restoredFromLog, substrateOf } from '#contracts/profiles'
import { hasLinks } from '#contracts/prompt'
import { runErrors } from '#contracts/run-errors'
import type { Claim, DurableSession, RunStore } from '#contracts/run-store'
import type { ExecuteRun, Fleet, RunnerLink } from '#contracts/runner'
import { skillErrors, type Skills } from '#contracts/skills'
import type { RunOrder } from './ending.ts'
import type { RunLinks } from './links.ts'
import { mayWait } from './delegations.ts'
import { readTurns } from './replay.ts'

/** The runner certainly did nothing, so another runner may be asked. */
const tookNothing = (error: unknown): boolean => isAppError(error) && error.status === 503 && error.retryable

/** Error codes that certainly began nothing and are not retried. A runner refuses with `limit_reached` before it begins anything. */
const begunNothing: readonly string[] = ['hydration_failed', 'no_runner', limitErrors.limitReached.row.code]
/** True when this error certainly means that no runner began anything. */
export const beganNothing = (error: AppError): boolean => tookNothing(error) || begunNothing.includes(error.code)

/** The answers of a runner that cannot follow links to attachments. A runner of an earlier release does not know links at all. */
const readsNoLinks = ({ code }: AppError): boolean => code === 'links_unread' || code === 'invalid_request'

/** The runner holds as many bytes of the tenant's attachments as it may, until other runs are over. */
const isFull = ({ code, detail }: AppError): boolean =>
  code === limitErrors.limitReached.row.code && detail['limit'] === ('attachmentBytes' satisfies LimitName)

/** True when the runner answered and only its sidecar cannot be reached. */
const lacksSidecar = ({ code, cause }: AppError): boolean =>
  code.startsWith('sidecar_') || (isAppError(cause) && cause.code.startsWith('sidecar_'))

/** Milliseconds. The runner's claim on a session may outlive ours by the time that an aborted stream takes to reach the runner. */
const busyRetryMs = 2_000
/** Milliseconds that all runners may be without their sidecars, because the sidecars are being restarted. */
const awayMs = 3_000
/** Milliseconds that an accepted run waits for a capable runner. Its caller was told that it is accepted, so nobody else would start it again. */
const announcedMs = 30_000
const awayRetryMs = 100
/** Milliseconds between the first two attempts, and at most, to bring a run to a full runner: each sends all of its attachments. */
const fullRetryMs = [500, 10_000] as const
/** Milliseconds for which the runner of a stopped run is listened to. By then the runner has ended the run. */
const lastWordsMs = 1_000

export interface RunnerStreamDeps {
  readonly store: RunStore
  readonly runners: Fleet
  readonly mcpServers: McpServers | undefined
  readonly egress: Egress | undefined
  readonly apps: Apps | undefined
  readonly skills: Skills | undefined
  readonly links: RunLinks
  readonly recall: Recall | undefined
}

/** What placement needs of a profile: its runtime, its pool, and the location of its sandboxes. */
export function placementOf({ runtime, placement, ...profile }: DurableSession['profile']) {
  const substrate = substrateOf(profile)
  return {
    runtime,
    ...(placement ? { pool: placement } : {}),
    ...(substrate === undefined ? {} : { substrate }),
  }
}

/** The runners of one run: executes an attempt, or reads on at the runner that has one under way. */
export class RunnerStream {
  readonly #deps: RunnerStreamDeps
  readonly #claim: Claim
  readonly #session: DurableSession
  readonly #placed: RunnerLink | undefined
  readonly #signal: AbortSignal
  /** The runner that took the run last. Undefined until one has. */
  runner: RunnerLink | undefined
  /** True while the conversation is being brought to a runner. */
  restoring = false
  /** The caller was told that the run is accepted: it cannot be taken back any more. */
  announced: boolean
  readonly #onFull: () => void

  /** `onFull` is called when the run waits for room at its runner: nobody has it, so another conductor may. */
  constructor(
    deps: RunnerStreamDeps,
    { claim, session, placed, announced, orphan }: Omit<RunOrder, 'task'>,
    signal: AbortSignal,
    onFull = (): void => {},
  ) {
    this.#onFull = onFull
    this.#deps = deps
    this.#claim = claim
    this.#session = session
    this.#placed = placed
    this.announced = announced ?? orphan !== undefined
    this.#signal = signal
  }

  /**
   * Executes an attempt. It is retried, on another runner if needed, only while nothing of it was seen. Rejects with an AppError only while no
   * runner has taken it.
   */
  async *execute(run: ExecuteRun): AsyncGenerator<Buffer> {
    // The session has neither a conversation nor a runner yet.
    const fresh = run.create !== undefined && (run.attempt ?? 1) === 1
    let body = await this.#withMemories(await this.#withSecrets(run))
    const tried = new Set<string>()
    const taught = new Set<RunnerLink>()
    let began = Date.now()
    let link = await this.#another(tried, began)
    let hydrated = fresh
    let fullMs: number = fullRetryMs[0]
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
        } else if (error.code === 'skills_missing' && !taught.has(link)) {
          taught.add(link)
          await this.#bringSkills(link, error)
        } else if (readsNoLinks(error) && hasLinks(body)) {
          body = { ...body, attachments: await this.#deps.links.inline(this.#claim, body.attachments!) }
        } else if (error.code === 'session_busy' && Date.now() < began + busyRetryMs) {
          await sleep(25, undefined, { signal: this.#signal })
        } else if (isFull(error) && this.announced) {
          // An accepted run is not refused any more: it waits for room, within its own time. Then it is as patient as at first.
          this.#onFull()
          await sleep(fullMs, undefined, { signal: this.#signal })
          began = Date.now()
          tried.clear()
          fullMs = Math.min(2 * fullMs, fullRetryMs[1])
        } else if (tookNothing(error)) {
          link = await this.#another(tried.add(link.hash), began, error)
          hydrated = fresh
        } else throw error
      }
    }
  }

  /** Reads on after the stored events, wherever the run executes. Ends at once, without a line, when no runner has the run. */
  async *attach(afterSeq: number): AsyncGenerator<Buffer> {
    const { tenantId, sessionId, runId, epoch } = this.#claim
    const { runners } = this.#deps
    const first = this.owner
    for (const link of new Set([...(first ? [first] : []), ...runners.all()])) {
      try {
        for await (const bytes of link.attach(tenantId, { sessionId, runId, afterSeq, epoch }, this.#signal)) {
          this.runner = link
          yield bytes
        }
        if (this.runner === link) return
      } catch (error) {
        // Another runner may have the run when this one cannot be reached or never had it.
        if (this.runner === link || this.#signal.aborted || !isAppError(error)) throw error
      }
    }
  }

  /** Reads what the runner of a stopped run has written since, to its end. The usage of the run's sandbox is reported there. */
  async *lastWords(afterSeq: number): AsyncGenerator<Buffer> {
    const { tenantId, sessionId, runId, epoch } = this.#claim
    if (this.runner)
      yield* this.runner.attach(tenantId, { sessionId, runId, afterSeq, epoch }, AbortSignal.timeout(lastWordsMs))
  }

  /** The runner that has the session. Undefined: this conductor does not know it. */
  get owner(): RunnerLink | undefined {
    return this.#deps.runners.owner(this.#claim.sessionId, this.#session.runner)
  }
  /** The runner at which tool calls may wait for a conductor. Their announcement went to the former conductor, which is gone. */
  get waits(): RunnerLink | undefined {
    return mayWait(this.#session.profile) ? this.owner : undefined
  }
  /** The runner with the newest conversation. Any other runner has an old copy, or none. */
  get #newestAt(): string | undefined {
    return this.#session.runner ?? hashOfSession(this.#session.id)
  }
  /** Throws `no_runner` when there is none. */
  #route(without: ReadonlySet<string>): RunnerLink {
    const { runners } = this.#deps
    const { id: sessionId, profile, runner } = this.#session
    const order = placementOf(profile)
    if (this.#placed) return without.size === 0 ? this.#placed : runners.place({ ...order, without })
    const stored = restoredFromLog(profile.runtime)
    return runners.home({ sessionId, ...order, ...(runner === undefined ? {} : { runner }), without, stored })
  }
  /**
   * A runner that was not tried yet. Once all were tried, all are asked again: for `awayMs` when they only lack their sidecars, for `announcedMs`
   * when the run is announced.
   */
  async #another(tried: Set<string>, began: number, error?: AppError): Promise<RunnerLink> {
    for (;;) {
      try {
        return this.#route(tried)
      } catch (none) {
        const patienceMs = this.announced ? announcedMs : error && lacksSidecar(error) ? awayMs : 0
        if (Date.now() >= began + patienceMs) throw error ?? none
        await sleep(awayRetryMs, undefined, { signal: this.#signal })
        tried.clear()
      }
    }
  }
  async #hydrate(link: RunnerLink, replace: boolean): Promise<void> {
    const { tenantId, sessionId } = this.#claim
    const { profile, stateRev } = this.#session
    this.restoring = true
    try {
      const bundle = restoredFromLog(profile.runtime)
        ? await readTurns(this.#deps, this.#claim, profile.memory?.inject ? this.#deps.recall : undefined)
        : stateRev > 0
          ? await this.#deps.store.loadState(tenantId, sessionId)
          : undefined
      await link.hydrate(tenantId, sessionId, profile, bundle, replace)
    } catch (cause) {
      if (isAppError(cause) && cause.status < 500) throw cause
      throw runErrors.hydrationFailed({ cause, retryable: tookNothing(cause) })
    } finally {
      this.restoring = false
    }
  }
  /** Brings a runner the skill versions that it lacks. Only the first session that keeps a version pays for this. */
  async #bringSkills(link: RunnerLink, { detail }: AppError): Promise<void> {
    const { tenantId } = this.#claim
    const { pinnedSkills = [] } = this.#session.profile
    const lacking = new Set(Array.isArray(detail['digests']) ? (detail['digests'] as unknown[]) : [])
    for (const { digest } of pinnedSkills.filter((pinned) => lacking.has(pinned.digest))) {
      const skill = await this.#deps.skills?.content(tenantId, digest)
      if (!skill) throw skillErrors.skillVersionGone()
      await link.putSkill(tenantId, skill)
    }
  }
  /** Secrets are looked up for each attempt, because they may have changed and are never stored with the run. */
  async #withSecrets(body: ExecuteRun): Promise<ExecuteRun> {
    const { mcpServers, egress, apps } = this.#deps
    const { mcpServers: names, egress: entries = [], apps: toolkits = [] } = this.#session.profile
    if (names.length + entries.length + toolkits.length === 0) return body
    const { tenantId } = this.#claim
    const [resolved, reached, offered] = await Promise.all([
      names.length > 0 ? mcpServers?.resolve(tenantId, names) : undefined,
      entries.length > 0 ? egress?.resolve(tenantId, entries) : undefined,
      toolkits.length > 0 ? apps?.toolsFor(tenantId, toolkits, endUserOf(body.metadata)) : undefined,
    ])
    const { servers } = resolved ?? {}
    const absent = (offered?.unavailable ?? []).map(({ toolkit, message }) => ({ server: toolkit, message }))
    const unavailable = [...(resolved?.unavailable ?? []), ...absent]
    return {
      ...body,
      ...(servers ? { mcpServers: [...servers] } : {}),
      ...(unavailable.length > 0 ? { mcpUnavailable: unavailable } : {}),
      ...(offered && offered.tools.length > 0 ? { apps: [...offered.tools] } : {}),
      ...(reached ? { egress: reached } : {}),
    }
  }
  /** Prefixes the first message of a conversation with the memories that fit it. The run keeps the message as it was sent. */
  async #withMemories(body: ExecuteRun): Promise<ExecuteRun> {
    const { memory, name } = this.#session.profile
    if (!memory?.inject || !body.create || !this.#deps.recall) return body
    const { tenantId, runId } = this.#claim
    const { prompt, metadata } = body
    const message = { tenantId, runId, profile: { name, memory }, endUserId: endUserOf(metadata), prompt }
    const recalled = await this.#deps.recall.choose(message)
    return recalled === '' ? body : { ...body, prompt: `${recalled}\n\n${prompt}` }
  }
}
