import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { newId } from '#contracts/ids'
import type { EndReason, RunStore } from '#contracts/run-store'
import { leftTo } from './ends.ts'

// A conflict means that an earlier insert committed and its answer was lost.
const register = {
  name: 'instance-register',
  text: `INSERT INTO instances (id, kind, lease_until) VALUES ($1, 'conductor', now() + $2 * interval '1 millisecond')
    ON CONFLICT DO NOTHING`,
}
const renew = {
  name: 'instance-renew',
  text: `UPDATE instances SET lease_until = now() + $2 * interval '1 millisecond' WHERE id = $1 AND NOT dead RETURNING id`,
}
// One statement marks this process as stopping and looks for another one. Of two processes that stop at once, at most one finds the other still
// available.
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
  /** Milliseconds. A process whose main thread is silent for longer counts as hung, and its lease is left to expire. */
  readonly hungMs: number
  readonly log: FastifyBaseLogger
}

// Conductors signal each other through the database they share, so no Redis is needed. Every process receives every signal; the one that executes
// the run, or has room for it, acts.
const asks = 'run_asks'
const notify = { name: 'run-ask', text: 'SELECT pg_notify($1, $2)' }

/**
 * The lease of this process, renewed in database time. A separate thread sends the heartbeat, because a process that is merely busy is not dead.
 * This object renews the lease until that thread runs, and whenever the thread fails.
 */
function createLease(db: Database, { heartbeatMs, leaseMs, hungMs, log }: InstanceOptions) {
  const fenced: (() => void)[] = []
  const timers: NodeJS.Timeout[] = []
  let enrolled = false
  let beating: Promise<void> | undefined
  const enrol = async (): Promise<void> => {
    await db.systemBatch([{ ...register, values: [lease.id, leaseMs] }])
    enrolled = true
  }
  const renewOrFence = async (): Promise<void> => {
    if (!enrolled) return enrol()
    const [renewed = []] = await db.systemBatch<[{ id: string }[]]>([{ ...renew, values: [lease.id, leaseMs] }])
    if (renewed.length > 0) return
    const before = lease.id
    lease.id = newId('inst')
    enrolled = false
    // Tell the listeners first: the runs of this process are lost, even if registering anew fails and is retried.
    for (const listener of fenced) listener()
    log.warn({ instance: before, successor: lease.id }, 'this process was declared dead; its runs were given up')
    await enrol()
  }
  /** Renews the lease. Finding the row dead or gone, it registers anew and tells the listeners that all claims were lost. */
  const beat = (): Promise<void> =>
    (beating ??= renewOrFence().finally(() => {
      beating = undefined
    }))
  const tryToBeat = (): Promise<void> =>
    beat().catch((err: unknown) => log.warn({ err }, 'the lease could not be renewed'))
  const heartbeat = db.heartbeat({
    renew,
    everyMs: heartbeatMs,
    hungMs,
    onLost: () => void tryToBeat(),
    onFailure: (err) =>
      log.warn({ err }, 'the thread that renews the lease failed; the main thread renews it meanwhile'),
  })
  const pulse = (): void => {
    if (enrolled) heartbeat.pulse([lease.id, leaseMs])
    if (!heartbeat.beats) void tryToBeat()
  }
  const lease = {
    /** The process takes a new id after it was fenced, so that its lost claims stay lost. */
    id: newId('inst'),
    beat,
    onFenced: (listener: () => void) => void fenced.push(listener),
    /** Registers this process, now or as soon as the database is there. */
    async open(): Promise<void> {
      // The thread starts with the first pulse: until then the lease holds that this process registers with.
      timers.push(setInterval(pulse, heartbeatMs).unref())
      // The boot continues without the database. The next heartbeat, or the first run, registers this process.
      await tryToBeat()
    },
    async close(): Promise<void> {
      if (timers.length === 0) return
      for (const timer of timers) clearTimeout(timer)
      await heartbeat.close()
      await beating?.catch(() => {})
      if (!enrolled) return
      await db.systemBatch([{ ...retire, values: [lease.id] }]).catch((err: unknown) => {
        // The lease runs out by itself.
        log.warn({ err }, 'this conductor could not sign off')
      })
    },
  }
  return lease
}

/** This process as one of the conductors. It owns its claims for as long as it holds its lease. */
export function createInstance(db: Database, options: InstanceOptions) {
  const lease = createLease(db, options)
  const listeners: Parameters<RunStore['onEndRequested']>[0][] = []
  const stops: (() => Promise<void>)[] = []
  const asked = (payload: string): void => {
    const [tenantId, runId, code, message] = JSON.parse(payload) as [string, string, string, string]
    for (const listener of listeners) listener(tenantId, runId, { code, message })
  }
  const { close } = lease
  return Object.assign(lease, {
    /** Listens for signals of the other conductors; a repeated call does nothing. Rejects while the database cannot be reached. */
    async listen(onLeft: (tenantId: string) => void): Promise<void> {
      if (stops.length === 0) stops.push(await db.listen(asks, asked))
      if (stops.length === 1) stops.push(await db.listen(leftTo, onLeft))
    },
    async requestEnd(tenantId: string, runId: string, { code, message }: EndReason): Promise<void> {
      await db.systemBatch([{ ...notify, values: [asks, JSON.stringify([tenantId, runId, code, message])] }])
    },
    onEndRequested: (listener: (typeof listeners)[number]) => void listeners.push(listener),
    /** Declares that this process takes over no more runs. True: another process does. */
    async retreat(): Promise<boolean> {
      const [others] = await db.systemBatch<[object[]]>([{ ...retreat, values: [lease.id] }])
      return others.length > 0
    },
    async close(): Promise<void> {
      for (const stop of stops) await stop().catch(() => {})
      await close()
    },
  })
}

export type Instance = ReturnType<typeof createInstance>
