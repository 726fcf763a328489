import type { FastifyBaseLogger } from 'fastify'
import { tenantKey } from '#contracts/ids'
import { type Limits, overLimit, type TenantLimits } from '#contracts/limits'
import type { Profile } from '#contracts/profiles'
import { attachmentBytesOf } from '#contracts/prompt'
import type { AdmitAttachments, RunStore, StartRun } from '#contracts/run-store'
import type { ExecuteRun } from '#contracts/runner'
import { Line } from './line.ts'
import { SessionCount } from './session-count.ts'

/** What this process knows about one tenant. */
interface Share {
  /** Slots that the store has granted to this process. */
  held: number
  /** Slots in use: runs that execute here, and starts that are under way. */
  used: number
  /** Starts that wait for a slot. */
  waiting: number
  /** Slots kept in reserve, so that a start costs no round trip to the store. */
  spare: number
  asking: Promise<void> | undefined
  /** Milliseconds since the epoch. Until then nobody asks the store for slots, because it has just said that there are none. */
  fullUntil: number
  /** Bytes of event logs: what all processes wrote on `day`, and what this process has written since that figure was read. */
  logged: number
  day: number
  unsaved: number
  /** Bytes of attachments: of runs that execute here, and of starts that are under way. */
  attachments: number
  /** Accepted runs that wait for a slot, and those that wait for room for their attachments. */
  readonly forSlot: Line
  readonly forRoom: Line
  readonly sessions: SessionCount
}

/** A process keeps 1/20 of a limit in reserve, rounded down, so of a small limit nothing. */
const sparePart = 20
const askAgainMs = 200
const sweepEveryMs = 10_000
const calledAtOnce = 16
const dayMs = 86_400_000
const today = (): number => Math.floor(Date.now() / dayMs)

/** Estimated bytes of a run's rows besides its content: run, session, messages, meters and marks, with their index entries. */
const rowsOfRun = 2_048

type Store = Pick<RunStore, 'holdRuns' | 'countHeld' | 'countLogBytes' | 'countSessions'>

/**
 * Enforces what the runs of each tenant may use. A slot is one executing run. All conductors together never exceed the limit, because the store
 * records the share of each; a conductor then hands out its share from memory.
 */
export class RunLimits {
  readonly #store: Store
  readonly #limits: TenantLimits | undefined
  readonly #log: Pick<FastifyBaseLogger, 'warn'>
  /** Bytes of admitted attachments of runs that have not begun yet. */
  readonly #arriving = new Map<string, number>()
  readonly #shares = new Map<string, Share>()
  /** Caches the size of a profile: profiles are shared objects, and there may be many starts of one. */
  readonly #profileBytes = new WeakMap<Profile, number>()
  /** Caches what runners are sent. A change of limits makes a new `Limits` object, hence a new entry. */
  readonly #onRunners = new WeakMap<Limits, Pick<ExecuteRun, 'limits'>>()
  #timer: NodeJS.Timeout | undefined
  #saving: Promise<void> | undefined

  /** Undefined limits allow everything. */
  constructor(store: Store, limits: TenantLimits | undefined, log: Pick<FastifyBaseLogger, 'warn'>) {
    this.#store = store
    this.#limits = limits
    this.#log = log
  }

  /** Takes a slot. True: the caller has one and must give it back. */
  take(tenantId: string): boolean | Promise<boolean> {
    if (!this.#limits) return true
    this.#limits.works(tenantId)
    const share = this.#of(tenantId)
    // An operator may have lowered the limit since.
    share.held = Math.min(share.held, this.#limits.of(tenantId).runningRuns)
    if (share.used >= share.held) return this.#wait(tenantId, share)
    share.used++
    return true
  }
  /**
   * Has `claim` begin a run that was accepted earlier, once its tenant has a slot for it (or `exempt` says that it needs none) and room for its
   * attachments. Until then it goes on waiting, and `again` is called when there may be enough. `claim` resolves to whether the run has begun here.
   */
  async beginLater(
    tenantId: string,
    id: string,
    again: () => void,
    claim: (admits: AdmitAttachments | undefined) => Promise<boolean>,
    exempt?: () => Promise<boolean>,
  ): Promise<void> {
    if (!this.#limits) return void (await claim(undefined))
    const share = this.#of(tenantId)
    const { forSlot, forRoom } = share
    const needs = forRoom.needsOf(id)
    // Sweeps name it every few seconds, and the store need not be asked as long as there is no room.
    if (needs !== undefined && !this.#isRoom(tenantId)(needs)) {
      forRoom.join(id, again, needs)
      return forSlot.pass(id)
    }
    const slot = this.take(tenantId)
    // It waits in line while it asks, so that it hears of a slot that becomes free meanwhile.
    if (slot !== true) forSlot.join(id, again)
    const isExempt = !(await slot)
    if (isExempt && !(await exempt?.())) return
    if (isExempt) share.used++
    forSlot.leave(id)
    let admitted: string | undefined,
      refused = false,
      begun = false
    try {
      begun = await claim((runId, bytes) => {
        if (admitted !== undefined) this.arrived(tenantId, admitted)
        admitted = this.#admits(tenantId, runId, bytes) ? runId : undefined
        refused = admitted === undefined
        if (refused) forRoom.join(id, again, bytes)
        return !refused
      })
      if (!refused) forRoom.leave(id)
    } finally {
      if (admitted !== undefined) this.arrived(tenantId, admitted)
      if (!begun) this.give(tenantId)
    }
    // What became free may be enough for more than one. If the store had a slot for this one, it may have others.
    if (begun && (share.used < share.held || (slot !== true && !isExempt))) forSlot.callFirst()
    if (admitted !== undefined) this.#callForRoom(tenantId)
  }
  /** Another run may be the first of this session's queue now, and need less room. */
  firstChanged(tenantId: string, sessionId: string): void {
    this.#shares.get(tenantId)?.forRoom.leave(sessionId)
  }
  /** Takes a slot whatever the limit is, for a run that already executes and continues here. */
  force(tenantId: string): void {
    if (this.#limits) this.#of(tenantId).used++
  }
  give(tenantId: string): void {
    const share = this.#shares.get(tenantId)
    if (!share) return
    share.used--
    share.fullUntil = 0
    // After a run in the slot of its parent, or with a limit that was lowered, there is none for others yet.
    if (share.used < this.#limits!.of(tenantId).runningRuns) share.forSlot.callFirst()
    if (share.held > share.used + 2 * share.spare) this.#settle(tenantId, share)
  }
  /** The number of executing runs. For other processes it includes the slots that they keep in reserve. */
  async running(tenantId: string): Promise<number> {
    const share = this.#shares.get(tenantId)
    return (await this.#store.countHeld(tenantId)) - (share ? share.held - share.used : 0)
  }
  /** Called when this process lost its lease. The store now knows it under a new id, which has no share yet. */
  lost(): void {
    for (const share of this.#shares.values()) share.held = 0
  }

  /** Refuses a new session when the tenant already has as many as its limit allows. The caller then says when the session is stored, or will not be. */
  async admitSession(tenantId: string): Promise<void> {
    if (!this.#limits) return
    await this.#of(tenantId).sessions.admit(this.#limits.of(tenantId).sessions)
  }
  /** Called when a session that was admitted is stored, or will not be. */
  sessionStored(tenantId: string): void {
    if (this.#limits) this.#of(tenantId).sessions.stored()
  }
  /** Refuses attachments when the tenant's runs hold as many bytes as its limit allows. A tenant that holds none may always bring those of one run. */
  admitAttachments(tenantId: string, runId: string, bytes: number): void {
    if (this.#limits && bytes > 0 && !this.#admits(tenantId, runId, bytes))
      throw overLimit('attachmentBytes', this.#limits.of(tenantId).attachmentBytes)
  }
  /** Called when a run with this many bytes of attachments begins. Attachments that were admitted for the run are already counted. */
  holdAttachments(tenantId: string, runId: string, bytes: number): void {
    if (!this.#limits || bytes === 0) return
    const key = tenantKey(tenantId, runId)
    this.#of(tenantId).attachments += bytes - (this.#arriving.get(key) ?? 0)
    this.#arriving.delete(key)
  }
  /** Releases the attachment bytes of a run that is over. */
  giveAttachments(tenantId: string, bytes: number): void {
    if (!this.#limits || bytes === 0) return
    this.#of(tenantId).attachments -= bytes
    this.#callForRoom(tenantId)
  }
  /** Ends the admission of a run's attachments: from now on the run holds them, or nobody does. */
  arrived(tenantId: string, runId: string): void {
    const bytes = this.#arriving.get(tenantKey(tenantId, runId))
    if (bytes === undefined) return
    this.#arriving.delete(tenantKey(tenantId, runId))
    this.giveAttachments(tenantId, bytes)
  }
  /** The part of the tenant's limits that a runner enforces. */
  ofRunner(tenantId: string): Pick<ExecuteRun, 'limits'> {
    if (!this.#limits) return {}
    const all = this.#limits.of(tenantId)
    const known = this.#onRunners.get(all)
    if (known) return known
    const { stateBytes, attachmentBytes, sandboxes, workspaceBytes, toolCallsPerMinute } = all
    const { objects, objectBytes, vfsBytes, vfsEntries, vfsSessions } = all
    const onRunner = { stateBytes, attachmentBytes, sandboxes, workspaceBytes, toolCallsPerMinute }
    const kept = { limits: { ...onRunner, objects, objectBytes, vfsBytes, vfsEntries, vfsSessions } }
    this.#onRunners.set(all, kept)
    return kept
  }
  /** Counts the bytes that were stored of a run's log. */
  logged(tenantId: string, bytes: number): void {
    if (!this.#limits) return
    this.#of(tenantId).unsaved += bytes
    this.#limits.stored.add(tenantId, bytes)
  }
  /**
   * Counts a stored run, whether it executes now or later. A new session also stores its profile, and a chat stores its prompt a second time among
   * its messages.
   */
  began(tenantId: string, { task, create }: Pick<StartRun, 'task' | 'create'>): void {
    if (!this.#limits) return
    const { prompt, metadata, chat } = task
    const content = Buffer.byteLength(prompt) * (chat ? 2 : 1) + attachmentBytesOf(task)
    const more = metadata ? JSON.stringify(metadata).length : 0
    this.#limits.stored.add(tenantId, rowsOfRun + content + more + (create ? this.#bytesOf(create.profile) : 0))
  }
  /** Counts the bytes that were stored for a run besides its log. */
  stored(tenantId: string, bytes: number): void {
    this.#limits?.stored.add(tenantId, bytes)
  }
  /** Why the tenant's runs cannot continue. Undefined: they can. */
  fullOf(tenantId: string): 'log_full' | 'storage_full' | undefined {
    if (this.logIsFull(tenantId)) return 'log_full'
    return this.#limits?.stored.isFull(tenantId) ? 'storage_full' : undefined
  }
  /** True: the tenant's runs have reached today's limit of log bytes. */
  logIsFull(tenantId: string): boolean {
    const share = this.#shares.get(tenantId)
    if (!share) return false
    const before = share.day === today() ? share.logged : 0
    return before + share.unsaved >= this.#limits!.of(tenantId).eventLogBytesPerDay
  }
  /** Refuses a run when the tenant has reached today's limit of log bytes, or its limit of stored bytes. */
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

  /** Tells for one run after the other whether there is room for it beside those before. One that needs more than there may be needs all of it. */
  #isRoom(tenantId: string): (bytes: number) => boolean {
    const most = this.#limits!.of(tenantId).attachmentBytes
    let room = most - this.#of(tenantId).attachments
    return (bytes) => {
      const needs = Math.min(bytes, most)
      if (needs > room) return false
      room -= needs
      return true
    }
  }
  #callForRoom(tenantId: string): void {
    this.#of(tenantId).forRoom.callFirst(calledAtOnce, this.#isRoom(tenantId))
  }
  #bytesOf(profile: Profile): number {
    const bytes = this.#profileBytes.get(profile) ?? Buffer.byteLength(JSON.stringify(profile))
    this.#profileBytes.set(profile, bytes)
    return bytes
  }
  /** Counts attachments that arrive, or that are to be read for a run. False: the tenant's runs hold too many bytes already. */
  #admits(tenantId: string, runId: string, bytes: number): boolean {
    const share = this.#of(tenantId)
    if (share.attachments > 0 && share.attachments + bytes > this.#limits!.of(tenantId).attachmentBytes) return false
    // A repeated call brings the same attachments, which are counted already.
    if (this.#arriving.has(tenantKey(tenantId, runId))) return true
    this.#arriving.set(tenantKey(tenantId, runId), bytes)
    share.attachments += bytes
    return true
  }
  #of(tenantId: string): Share {
    let share = this.#shares.get(tenantId)
    if (share) return share
    const runs = { held: 0, used: 0, waiting: 0, spare: 0, asking: undefined, fullUntil: 0 }
    const sessions = new SessionCount((most) => this.#store.countSessions(tenantId, most))
    const lines = { forSlot: new Line(), forRoom: new Line() }
    share = { ...runs, ...lines, sessions, logged: 0, day: 0, unsaved: 0, attachments: 0 }
    this.#shares.set(tenantId, share)
    this.#timer ??= setInterval(() => this.#sweep(), sweepEveryMs).unref()
    return share
  }
  async #wait(tenantId: string, share: Share): Promise<boolean> {
    share.waiting++
    try {
      // A request that is already under way may have been sent before this caller came, so ask up to twice.
      for (let asked = 0; asked < 2 && share.used >= share.held && Date.now() >= share.fullUntil; asked++)
        await this.#ask(tenantId, share)
    } finally {
      share.waiting--
    }
    if (share.used >= share.held) return false
    share.used++
    return true
  }
  #ask(tenantId: string, share: Share, idle = false): Promise<void> {
    return (share.asking ??= this.#hold(tenantId, share, idle).finally(() => (share.asking = undefined)))
  }
  async #hold(tenantId: string, share: Share, idle: boolean): Promise<void> {
    const { runningRuns: max } = this.#limits!.of(tenantId)
    share.spare = idle ? 0 : Math.floor(max / sparePart)
    // Callers may arrive during the request, so judge by the number that was asked for whether slots ran out.
    const needed = share.used + share.waiting
    // What is given back now must not be taken before the answer comes.
    share.held = Math.min(share.held, needed + share.spare)
    share.held = await this.#store.holdRuns(tenantId, needed + share.spare, max)
    if (share.held < needed) share.fullUntil = Date.now() + askAgainMs
  }
  /** Returns unneeded slots to the store in the background. If that fails, the next sweep tries again. */
  #settle(tenantId: string, share: Share, idle?: boolean): void {
    if (!share.asking) this.#ask(tenantId, share, idle).catch(() => {})
  }
  #sweep(): void {
    this.#saving ??= this.#save().finally(() => (this.#saving = undefined))
    for (const [tenantId, share] of this.#shares) {
      for (const line of [share.forSlot, share.forRoom]) line.sweep()
      // Another process may have given slots back. All that are called ask for theirs together.
      share.forSlot.callFirst(calledAtOnce)
      this.#callForRoom(tenantId)
      const { used, waiting, asking, unsaved, attachments, forSlot, forRoom } = share
      if (used + waiting + unsaved + attachments + forSlot.size + forRoom.size > 0 || asking) continue
      // Nobody has needed a slot since the last sweep, so return the share for other processes to use.
      if (share.held > 0) this.#settle(tenantId, share, true)
      else if (share.sessions.isOutdated && !this.logIsFull(tenantId)) this.#shares.delete(tenantId)
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
    // A failed count is added to the next one.
    const saved = await Promise.allSettled([...this.#shares].map(save))
    const failed = saved.find((one) => one.status === 'rejected')
    if (failed) this.#log.warn({ err: failed.reason }, 'the writes of runs could not be counted yet')
  }
}
