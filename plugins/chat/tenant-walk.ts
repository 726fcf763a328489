import type { Database } from '#contracts/database'

const everyTenant = { name: 'chat-tenants', text: `SELECT id FROM tenants ORDER BY id` }

/**
 * Chores that have to be done tenant by tenant, because row security hides rows from a statement without a tenant. Tenants
 * in which something happened lately are visited at every turn, all of them now and then, for what other processes left.
 */
export interface TenantWalk {
  /** Something happened in this tenant. */
  touch(tenantId: string): void
  /** Visits those that are due, one after the other. Never rejects; a tenant that failed is visited again. */
  turn(): Promise<void>
  start(): void
  stop(): Promise<void>
}

interface Chore {
  readonly database: Database
  readonly everyMs: number
  /** For how long a tenant is visited at every turn after it was touched. */
  readonly lingerMs: number
  readonly walkMs: number
  visit(tenantId: string): Promise<unknown>
  /** After each turn. `everybody`: all tenants were due. */
  onTurn(everybody: boolean, failures: readonly unknown[]): void
  /** Monotonic milliseconds; tests give their own. */
  readonly now?: (() => number) | undefined
}

export function createTenantWalk(chore: Chore): TenantWalk {
  const { database, everyMs, lingerMs, walkMs, visit, onTurn, now = () => performance.now() } = chore
  const lately = new Map<string, number>()
  let walked = Number.NEGATIVE_INFINITY
  let stopped = false
  let timer: NodeJS.Timeout | undefined
  let turning: Promise<void> | undefined

  const turn = async (): Promise<void> => {
    const at = now()
    const everybody = at - walked >= walkMs
    const failures: unknown[] = []
    const failed = (err: unknown): void => void failures.push(err)
    const all = everybody ? await database.systemBatch<[{ id: string }[]]>([everyTenant]).catch(failed) : undefined
    for (const tenantId of everybody ? (all?.[0].map(({ id }) => id) ?? []) : [...lately.keys()]) {
      if (stopped) return
      const rest = (): void => {
        if (at - (lately.get(tenantId) ?? at) >= lingerMs) lately.delete(tenantId)
      }
      await visit(tenantId).then(rest, failed)
    }
    if (everybody && failures.length === 0) walked = at
    onTurn(everybody, failures)
  }
  const walk: TenantWalk = {
    touch: (tenantId) => void lately.set(tenantId, now()),
    turn: () =>
      (turning ??= turn().finally(() => {
        turning = undefined
      })),
    start() {
      timer = setInterval(() => void walk.turn(), everyMs).unref()
    },
    async stop() {
      stopped = true
      clearInterval(timer)
      await turning
    },
  }
  return walk
}
