import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { newId } from '#contracts/ids'

// What a dead gateway left is in other hands within 15 s: three missed beats, and a sweep.
const beatMs = 4_000
const leaseSeconds = 12

// A conflict is our own row, when an earlier answer was lost.
const register = {
  name: 'gateway-register',
  text: `INSERT INTO instances (id, kind, lease_until) VALUES ($1, 'gateway', now() + $2 * interval '1 second')
         ON CONFLICT DO NOTHING`,
}
const renew = {
  name: 'gateway-renew',
  text: `UPDATE instances SET lease_until = now() + $2 * interval '1 second' WHERE id = $1 AND NOT dead RETURNING id`,
}
const retire = {
  name: 'gateway-retire',
  text: `UPDATE instances SET dead = true, lease_until = least(lease_until, now()) WHERE id = $1`,
}
const remove = { name: 'gateway-remove', text: `DELETE FROM instances WHERE id = $1` }

/** This process as the owner of public runs: a row that its heartbeat renews, in database time. */
export interface Instance {
  /** Changes when others declared this process dead, e.g. after it was frozen: it goes on as another owner. */
  readonly id: string
  /** Registers this process, now or as soon as the database is there. */
  open(): Promise<void>
  beat(): Promise<void>
  /** The id under which runs may be begun: others would sweep what belongs to a process that is not registered. */
  owner(): Promise<string>
  /** `openRuns`: the row stays, marked dead, so that another gateway takes over what this one leaves. */
  close(openRuns: boolean): Promise<void>
}

export function createInstance(database: Database, log: FastifyBaseLogger): Instance {
  let id = newId('inst')
  let timer: NodeJS.Timeout | undefined
  let enrolled = false
  let beating: Promise<void> | undefined
  const renewOrReturn = async (): Promise<void> => {
    if (!enrolled) {
      await database.systemBatch([{ ...register, values: [id, leaseSeconds] }])
      enrolled = true
      return
    }
    const [renewed] = await database.systemBatch<[object[]]>([{ ...renew, values: [id, leaseSeconds] }])
    if (renewed.length > 0) return
    log.warn({ instance: id }, 'this gateway was declared dead; it goes on under another instance id')
    const successor = newId('inst')
    await database.systemBatch([{ ...register, values: [successor, leaseSeconds] }])
    id = successor
  }
  const beat = (): Promise<void> =>
    (beating ??= renewOrReturn().finally(() => {
      beating = undefined
    }))
  return {
    get id() {
      return id
    },
    async open() {
      const tryBeat = (): Promise<void> =>
        beat().catch((err: unknown) => log.warn({ err }, 'the lease of this gateway could not be renewed'))
      timer = setInterval(tryBeat, beatMs).unref()
      // A database that is away is no reason not to boot: a later beat enrols this process.
      await tryBeat()
    },
    beat,
    async owner() {
      if (!enrolled) await beat()
      return id
    },
    async close(openRuns) {
      if (timer === undefined) return
      clearInterval(timer)
      await beating?.catch(() => {})
      await database.systemBatch([{ ...(openRuns ? retire : remove), values: [id] }]).catch((err: unknown) => {
        // The lease runs out by itself.
        log.warn({ err }, 'this gateway could not sign off')
      })
    },
  }
}
