import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { countIngress } from './ingress.store.ts'
import { tenantIds } from './orphans.store.ts'

const everyMs = 30_000
/** A tenant is looked at for this long after its last chat: its last minute has to be over, and late commits to be in. */
const quietMs = 3 * 60_000
/** All tenants, so that what a gateway accepted that has died since is counted too. */
const walkMs = 10 * 60_000

interface Dependencies {
  readonly database: Database
  readonly log: FastifyBaseLogger
  /** Monotonic milliseconds; tests give their own. */
  readonly now?: () => number
}

/**
 * The meter `ingress`: accepted public chats by agent and minute. Nothing is counted in memory; the runs themselves are,
 * so an interval whose flush failed is not dropped but counted by the next one.
 */
export interface Ingress {
  accepted(tenantId: string): void
  /** Counts the tenants that had chats lately, or all of them. */
  flush(): Promise<void>
  start(): void
  stop(): Promise<void>
}

export function createIngress({ database, log, now = () => performance.now() }: Dependencies): Ingress {
  const lately = new Map<string, number>()
  let walked = Number.NEGATIVE_INFINITY
  let stopped = false
  let timer: NodeJS.Timeout | undefined
  let flushing: Promise<void> | undefined

  const flush = async (): Promise<void> => {
    const at = now()
    const everybody = at - walked >= walkMs
    const failures: unknown[] = []
    const failed = (err: unknown): string[] => {
      failures.push(err)
      return []
    }
    const counted = (tenantId: string) => (): void => {
      if (at - (lately.get(tenantId) ?? at) >= quietMs) lately.delete(tenantId)
    }
    for (const tenantId of everybody ? await tenantIds(database).catch(failed) : [...lately.keys()]) {
      if (stopped) return
      await countIngress(database, tenantId).then(counted(tenantId), failed)
    }
    // Once for all tenants: when the database is away it is away for each of them.
    if (failures.length > 0) log.error({ err: failures[0], failures: failures.length }, 'ingress.flush_failed')
    else if (everybody) walked = at
  }
  const ingress: Ingress = {
    accepted: (tenantId) => void lately.set(tenantId, now()),
    flush: () =>
      (flushing ??= flush().finally(() => {
        flushing = undefined
      })),
    start() {
      timer = setInterval(() => void ingress.flush(), everyMs).unref()
    },
    async stop() {
      stopped = true
      clearInterval(timer)
      await flushing
    },
  }
  return ingress
}
