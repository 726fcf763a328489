import type { FastifyBaseLogger } from 'fastify'
import { tenantKey } from '#contracts/ids'
import { type Limits, overLimit, type TenantLimits } from '#contracts/limits'
import type { Profile } from '#contracts/profiles'
import type { RunStore, StartRun } from '#contracts/run-store'
import type { ExecuteRun } from '#contracts/runner'
import type { Task } from '#contracts/runs'

/** What this process knows of one tenant. */
interface Share {
  /** Runs that this process may execute. */
  held: number
  /** Runs that it executes, and starts that are under way. */
  used: number
  /** Starts that wait for a slot. */
  waiting: number
  /** Kept at hand, so that a start costs no round trip. */
  spare: number
  asking: Promise<void> | undefined
  /** Until then nobody asks the store for more, which has just said that there is none. */
  fullUntil: number
  /** Bytes of event logs: what all processes have written on `day`, and what this one has since that was read. */
  logged: number
  day: number
  unsaved: number
  /** Of the attachments of runs that execute here, and of starts that are under way. */
  attachments: number
  /** Sessions when they were counted last, and those begun here since then. */
  sessions: number
  begun: number
  countedAt: number
}

/** A process keeps one in so many of a limit at hand; of a small limit none. */
const sparePart = 20
const askAgainMs = 200
const sweepEveryMs = 10_000
const countEveryMs = 600_000
const dayMs = 86_400_000
const today = (): number => Math.floor(Date.now() / dayMs)

/** What the rows of a run take beside its content: the run, its session, messages, meters and marks, with their index entries. */
const rowsOfRun = 2_048
/** As base64, which is how they are held. */
export const attachmentBytesOf = ({ attachments = [] }: Pick<Task, 'attachments'>): number =>
  attachments.reduce((sum, { data }) => sum + (data?.length ?? 0), 0)

type Store = Pick<RunStore, 'holdRuns' | 'countHeld' | 'countLogBytes' | 'countSessions'>

/**
 * What the runs of each tenant may take. Slots are runs that execute: all conductors together never hold more than the limit,
 * because the store keeps the share of each, which it then uses from memory.
 */
export class RunLimits {
  readonly #store: Store
  readonly #limits: TenantLimits | undefined
  readonly #log: Pick<FastifyBaseLogger, 'warn'>
  readonly #onFree: (tenantId: string) => void
  /** Bytes of attachments that were admitted for runs which have not begun. */
  readonly #arriving = new Map<string, number>()
  readonly #shares = new Map<string, Share>()
  /** Profiles come from memory, and there may be many starts of one. */
  readonly #profileBytes = new WeakMap<Profile, number>()
  /** Limits are another object when they have changed. */
  readonly #onRunners = new WeakMap<Limits, Pick<ExecuteRun, 'limits'>>()
  #timer: NodeJS.Timeout | undefined
  #saving: Promise<void> | undefined

  /** Without limits everything is allowed. `onFree` is called when a slot of a tenant was given back. */
  constructor(
    store: Store,
    limits: TenantLimits | undefined,
    log: Pick<FastifyBaseLogger, 'warn'>,
    onFree: (tenantId: string) => void,
  ) {
    this.#store = store
    this.#limits = limits
    this.#log = log
    this.#onFree = onFree
  }

  /** True: the caller has a slot, and gives it back. */
  take(tenantId: string): boolean | Promise<boolean> {
    if (!this.#limits) return true
    const share = this.#of(tenantId)
    if (share.used >= share.held) return this.#wait(tenantId, share)
    share.used++
    return true
  }
  /** For a run that goes on here whatever the limit is. */
  force(tenantId: string): void {
    if (this.#limits) this.#of(tenantId).used++
  }
  give(tenantId: string): void {
    const share = this.#shares.get(tenantId)
    if (!share) return
    share.used--
    share.fullUntil = 0
    if (share.held > share.used + 2 * share.spare) this.#settle(tenantId, share)
    this.#onFree(tenantId)
  }
  /** Runs that execute: those of other processes with what they keep at hand. */
  async running(tenantId: string): Promise<number> {
    const share = this.#shares.get(tenantId)
    return (await this.#store.countHeld(tenantId)) - (share ? share.held - share.used : 0)
  }
  /** The store knows this process under another name now, which has no share yet. */
  lost(): void {
    for (const share of this.#shares.values()) share.held = 0
  }

  /** Refuses a new session to a tenant that has as many as it may. */
  async admitSession(tenantId: string): Promise<void> {
    if (!this.#limits) return
    const share = this.#of(tenantId)
    const { sessions: most } = this.#limits.of(tenantId)
    const isFull = (): boolean => share.sessions + share.begun >= most
    const age = Date.now() - share.countedAt
    if (isFull() && (share.begun > 0 || age > askAgainMs)) await this.#countSessions(tenantId, share, most)
    // Behind the start: there may be very many to count.
    else if (age > countEveryMs) void this.#countSessions(tenantId, share, most).catch(() => {})
    if (isFull()) throw overLimit('sessions', most)
    share.begun++
  }
  /** Refuses attachments to a tenant whose runs hold as many as they may; a tenant without any may have those of one run. */
  admitAttachments(tenantId: string, runId: string, bytes: number): void {
    if (!this.#limits || bytes === 0) return
    const { attachmentBytes: most } = this.#limits.of(tenantId)
    const share = this.#of(tenantId)
    if (share.attachments > 0 && share.attachments + bytes > most) throw overLimit('attachmentBytes', most)
    // A call that is repeated brings the same attachments.
    if (this.#arriving.has(tenantKey(tenantId, runId))) return
    this.#arriving.set(tenantKey(tenantId, runId), bytes)
    share.attachments += bytes
  }
  /** A run with so many bytes of attachments begins. Those that were admitted for it are counted already. */
  holdAttachments(tenantId: string, runId: string, bytes: number): void {
    if (!this.#limits || bytes === 0 || this.#arriving.delete(tenantKey(tenantId, runId))) return
    this.#of(tenantId).attachments += bytes
  }
  /** The run is over. */
  giveAttachments(tenantId: string, bytes: number): void {
    if (this.#limits && bytes !== 0) this.#of(tenantId).attachments -= bytes
  }
  /** What was admitted for a run is held by that run, or by none. */
  arrived(tenantId: string, runId: string): void {
    const bytes = this.#arriving.get(tenantKey(tenantId, runId))
    if (bytes === undefined) return
    this.#arriving.delete(tenantKey(tenantId, runId))
    this.giveAttachments(tenantId, bytes)
  }
  /** What a runner keeps of the tenant's limits. */
  ofRunner(tenantId: string): Pick<ExecuteRun, 'limits'> {
    if (!this.#limits) return {}
    const all = this.#limits.of(tenantId)
    const known = this.#onRunners.get(all)
    if (known) return known
    const { stateBytes, sandboxes, workspaceBytes, toolCallsPerMinute, objects, objectBytes } = all
    const { vfsBytes, vfsEntries, vfsSessions } = all
    const onRunner = { stateBytes, sandboxes, workspaceBytes, toolCallsPerMinute, objects, objectBytes }
    const kept = { limits: { ...onRunner, vfsBytes, vfsEntries, vfsSessions } }
    this.#onRunners.set(all, kept)
    return kept
  }
  /** Called with the size of what was stored of a run's log. */
  logged(tenantId: string, bytes: number): void {
    if (!this.#limits) return
    this.#of(tenantId).unsaved += bytes
    this.#limits.stored.add(tenantId, bytes)
  }
  /** A run was stored, to be executed now or later. A new session comes with its profile, and a chat has its prompt among its messages, too. */
  began(tenantId: string, { task, create }: Pick<StartRun, 'task' | 'create'>): void {
    if (!this.#limits) return
    const { prompt, metadata, chat } = task
    const content = Buffer.byteLength(prompt) * (chat ? 2 : 1) + attachmentBytesOf(task)
    const more = metadata ? JSON.stringify(metadata).length : 0
    this.#limits.stored.add(tenantId, rowsOfRun + content + more + (create ? this.#bytesOf(create.profile) : 0))
  }
  /** Called with the size of what was stored of a run beside its log. */
  stored(tenantId: string, bytes: number): void {
    this.#limits?.stored.add(tenantId, bytes)
  }
  /** Why the runs of a tenant cannot go on. */
  fullOf(tenantId: string): 'log_full' | 'storage_full' | undefined {
    if (this.logIsFull(tenantId)) return 'log_full'
    return this.#limits?.stored.isFull(tenantId) ? 'storage_full' : undefined
  }
  /** True: the tenant's runs have written as much to their logs today as they may. */
  logIsFull(tenantId: string): boolean {
    const share = this.#shares.get(tenantId)
    if (!share) return false
    const before = share.day === today() ? share.logged : 0
    return before + share.unsaved >= this.#limits!.of(tenantId).eventLogBytesPerDay
  }
  /** Refuses a run to a tenant whose runs have written as much today as they may, or of which as much is stored. */
  admitWrites(tenantId: string): void {
    this.#limits?.stored.admit(tenantId)
    if (!this.logIsFull(tenantId)) return
    const seconds = Math.ceil((dayMs - (Date.now() % dayMs)) / 1_000)
    throw overLimit('eventLogBytesPerDay', this.#limits!.of(tenantId).eventLogBytesPerDay, seconds)
  }

  async close(): Promise<void> {
    clearInterval(this.#timer)
    await this.#saving
    await this.#save()
  }

  #bytesOf(profile: Profile): number {
    const bytes = this.#profileBytes.get(profile) ?? Buffer.byteLength(JSON.stringify(profile))
    this.#profileBytes.set(profile, bytes)
    return bytes
  }
  async #countSessions(tenantId: string, share: Share, most: number): Promise<void> {
    share.begun = 0
    share.countedAt = Date.now()
    share.sessions = await this.#store.countSessions(tenantId, most)
  }
  #of(tenantId: string): Share {
    let share = this.#shares.get(tenantId)
    if (share) return share
    const runs = { held: 0, used: 0, waiting: 0, spare: 0, asking: undefined, fullUntil: 0 }
    share = { ...runs, logged: 0, day: 0, unsaved: 0, attachments: 0, sessions: 0, begun: 0, countedAt: 0 }
    this.#shares.set(tenantId, share)
    this.#timer ??= setInterval(() => this.#sweep(), sweepEveryMs).unref()
    return share
  }
  async #wait(tenantId: string, share: Share): Promise<boolean> {
    share.waiting++
    try {
      // The answer under way may be to a question from before this caller came.
      for (let asked = 0; asked < 2 && share.used >= share.held && Date.now() >= share.fullUntil; asked++)
        await this.#ask(tenantId, share)
    } finally {
      share.waiting--
    }
    if (share.used < share.held) {
      share.used++
      return true
    }
    return false
  }
  #ask(tenantId: string, share: Share, idle = false): Promise<void> {
    return (share.asking ??= this.#hold(tenantId, share, idle).finally(() => (share.asking = undefined)))
  }
  async #hold(tenantId: string, share: Share, idle: boolean): Promise<void> {
    const { runningRuns: max } = this.#limits!.of(tenantId)
    share.spare = idle ? 0 : Math.floor(max / sparePart)
    // Others may come while the answer is on its way: whether there is no more is judged by what was asked.
    const needed = share.used + share.waiting
    share.held = await this.#store.holdRuns(tenantId, needed + share.spare, max)
    if (share.held < needed) share.fullUntil = Date.now() + askAgainMs
  }
  /** Gives back what is not needed, behind whatever goes on. What cannot be given back now is at the next sweep. */
  #settle(tenantId: string, share: Share, idle?: boolean): void {
    if (!share.asking) this.#ask(tenantId, share, idle).catch(() => {})
  }
  #sweep(): void {
    this.#saving ??= this.#save().finally(() => (this.#saving = undefined))
    for (const [tenantId, share] of this.#shares) {
      if (share.used > 0 || share.waiting > 0 || share.asking || share.unsaved > 0 || share.attachments > 0) continue
      // Nobody has needed a slot since the last look: others may.
      if (share.held > 0) this.#settle(tenantId, share, true)
      else if (Date.now() > share.countedAt + countEveryMs && !this.logIsFull(tenantId)) this.#shares.delete(tenantId)
    }
  }
  async #save(): Promise<void> {
    const save = async ([tenantId, share]: [string, Share]): Promise<void> => {
      const { unsaved } = share
      if (unsaved === 0) return
      share.logged = await this.#store.countLogBytes(tenantId, unsaved)
      share.day = today()
      share.unsaved -= unsaved
    }
    // What could not be counted now is counted with the next.
    const saved = await Promise.allSettled([...this.#shares].map(save))
    const failed = saved.find((one) => one.status === 'rejected')
    if (failed) this.#log.warn({ err: failed.reason }, 'the writes of runs could not be counted yet')
  }
}
