import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import { newId } from '#contracts/ids'
import type { EndReason, RunStore } from '#contracts/run-store'
import { leftTo } from './ends.ts'

// A conflict is our own row, when an earlier answer was lost.
const register = {
  name: 'instance-register',
  text: `INSERT INTO instances (id, kind, lease_until) VALUES ($1, 'conductor', now() + $2 * interval '1 millisecond')
    ON CONFLICT DO NOTHING`,
}
const renew = {
  name: 'instance-renew',
  text: `UPDATE instances SET lease_until = now() + $2 * interval '1 millisecond' WHERE id = $1 AND NOT dead RETURNING id`,
}
// Both in one statement: of two that stop at once, at most one finds the other still there.
const retreat = {
  name: 'instance-retreat',
  text: `WITH self AS (UPDATE instances SET stopping = true WHERE id = $1)
    SELECT 1 FROM instances WHERE kind = 'conductor' AND id <> $1 AND NOT dead AND NOT stopping AND lease_until > now() LIMIT 1`,
}
const retire = {
  name: 'instance-retire',
  text: `UPDATE instances SET dead = true, lease_until = least(lease_until, now()) WHERE id = $1`,
}

export interface InstanceOptions {
  readonly heartbeatMs: number
  readonly leaseMs: number
  readonly log: FastifyBaseLogger
}

// Conductors talk through the database they share, which needs no Redis. Every process hears every signal; the one that
// executes the run, or has room for it, acts on it.
const asks = 'run_asks'
const notify = { name: 'run-ask', text: 'SELECT pg_notify($1, $2)' }

/** This process among the conductors: the owner of claims, as a row that its heartbeat renews in database time. */
export function createInstance(db: Database, options: InstanceOptions) {
  const { heartbeatMs, leaseMs, log } = options
  const fenced: (() => void)[] = []
  const listeners: Parameters<RunStore['onAsked']>[0][] = []
  const stops: (() => Promise<void>)[] = []
  let id = newId('inst')
  let timer: NodeJS.Timeout | undefined
  let enrolled = false
  let beating: Promise<void> | undefined
  const enrol = async (): Promise<void> => {
    await db.systemBatch([{ ...register, values: [id, leaseMs] }])
    enrolled = true
  }
  const renewOrFence = async (): Promise<void> => {
    if (!enrolled) return enrol()
    const [renewed = []] = await db.systemBatch<[{ id: string }[]]>([{ ...renew, values: [id, leaseMs] }])
    if (renewed.length > 0) return
    const before = id
    id = newId('inst')
    enrolled = false
    // Listeners first: whatever this process still runs belongs to nobody, even if enrolling fails and is tried again.
    for (const listener of fenced) listener()
    log.warn({ instance: before, successor: id }, 'this process was declared dead; its runs were given up')
    await enrol()
  }
  /** Renews the lease. Finding the row dead or gone, it registers anew and tells the listeners that all claims were lost. */
  const beat = (): Promise<void> =>
    (beating ??= renewOrFence().finally(() => {
      beating = undefined
    }))
  const asked = (payload: string): void => {
    const [tenantId, runId, code, message] = JSON.parse(payload) as [string, string, string, string]
    for (const listener of listeners) listener(tenantId, runId, { code, message })
  }
  return {
    /** Changes when the process was fenced: it comes back as another owner. */
    get id() {
      return id
    },
    beat,
    /** Registers this process, now or as soon as the database is there. */
    async open(): Promise<void> {
      const renewed = (): Promise<void> =>
        beat().catch((err: unknown) => log.warn({ err }, 'the lease could not be renewed'))
      timer = setInterval(renewed, heartbeatMs).unref()
      // A database that is away is no reason not to boot: the next beat, or the first run, enrols this process.
      await renewed()
    },
    /** Begins to listen to the others, unless it does already. Rejects while the database is away. */
    async listen(onLeft: (tenantId: string) => void): Promise<void> {
      if (stops.length === 0) stops.push(await db.listen(asks, asked))
      if (stops.length === 1) stops.push(await db.listen(leftTo, onLeft))
    },
    async ask(tenantId: string, runId: string, { code, message }: EndReason): Promise<void> {
      await db.systemBatch([{ ...notify, values: [asks, JSON.stringify([tenantId, runId, code, message])] }])
    },
    onAsked: (listener: (typeof listeners)[number]) => void listeners.push(listener),
    onFenced: (listener: () => void) => void fenced.push(listener),
    /** Says that this process takes nothing over any more. True: another one does. */
    async retreat(): Promise<boolean> {
      const [others] = await db.systemBatch<[object[]]>([{ ...retreat, values: [id] }])
      return others.length > 0
    },
    async close(): Promise<void> {
      for (const stop of stops) await stop().catch(() => {})
      if (timer === undefined) return
      clearInterval(timer)
      await beating?.catch(() => {})
      if (!enrolled) return
      await db.systemBatch([{ ...retire, values: [id] }]).catch((err: unknown) => {
        // The lease runs out by itself.
        log.warn({ err }, 'this conductor could not sign off')
      })
    },
  }
}

export type Instance = ReturnType<typeof createInstance>

/** How long after a lost answer its statement may still be carried out by the server. */
const doubtMs = 60_000
/** How long a run may be claimed before whoever claimed it begins to execute it. */
const begunMs = 5_000

const listOwn = {
  name: 'run-list-own',
  text: `SELECT id FROM runs WHERE tenant_id = $1 AND claim_owner = $2 AND started_at > now() - interval '25 hours' AND status = 'running'`,
}
const lost: EndReason = {
  code: 'interrupted',
  message: 'The server lost touch with the database just when the run began.',
}

/**
 * A claim may be committed and its answer lost. Its owner lives, so no orphan sweep takes the run, and nobody executes it:
 * its session would be busy until this process ends.
 */
export function createLostClaims(db: Database, instance: Instance, steal: RunStore['steal'], waitMs = begunMs) {
  /** Tenants with an answer that was lost, and until when to look. */
  const doubts = new Map<string, number>()
  /** Since when a run was seen without anybody executing it. */
  const seen = new Map<string, number>()
  let executes: Parameters<RunStore['executing']>[0] | undefined

  const look = async (tenantId: string, now: number): Promise<void> => {
    const [runs] = await db.batch<[{ id: string }[]]>(tenantId, [{ ...listOwn, values: [tenantId, instance.id] }])
    for (const { id } of runs) {
      const key = `${tenantId}\n${id}`
      const since = seen.get(key) ?? now
      if (executes?.(tenantId, id) !== false) seen.delete(key)
      else if (now - since < waitMs) seen.set(key, since)
      else {
        seen.delete(key)
        await steal(tenantId, id, 'interrupted', lost)
      }
    }
  }
  return {
    /** Passes the outcome of a claim on, and remembers where one may have been made without anybody knowing. */
    async watch<T>(tenantId: string, claiming: Promise<T>): Promise<T> {
      try {
        return await claiming
      } catch (error) {
        if (isAppError(error) && error.status === 503) doubts.set(tenantId, Date.now() + doubtMs)
        throw error
      }
    },
    executing(check: Parameters<RunStore['executing']>[0]): void {
      executes = check
    },
    /** Ends what this process owns and does not execute, where it may own something unawares. */
    async sweep(): Promise<void> {
      const now = Date.now()
      for (const [tenantId, until] of doubts) {
        await look(tenantId, now)
        if (now > until) doubts.delete(tenantId)
      }
      if (doubts.size === 0) seen.clear()
    },
  }
}
