import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { leaseMs } from './nodes.store.ts'
import type { Outcome } from './outcome.ts'

/** A run that this process advances at the moment. */
export interface Driver {
  readonly tenantId: string
  readonly runId: string
  /** Attempts under way here, by node. */
  readonly underWay: Map<string, AbortController>
  /** Outcomes that are not stored yet. */
  outcomes: Outcome[]
  /** Id of the pending wake-up with which another process continues the run if this one dies. Undefined: none is pending. */
  guard: string | undefined
  /** A wake-up came meanwhile, so the run has to be checked once more. */
  again: boolean
  /**
   * When the first lease of another process expires, by `performance.now()`; Infinity: none is known. Only a step that looks for due nodes finds these
   * leases; this is what the last such step found.
   */
  leasedUntil: number
  wake: () => void
  /** Resolves when the run first waits for its calls. */
  readonly calls: PromiseWithResolvers<void>
  done: Promise<void>
}

export const newDriver = (tenantId: string, runId: string, guard?: string): Driver => ({
  tenantId,
  runId,
  underWay: new Map(),
  outcomes: [],
  guard,
  again: guard === undefined,
  leasedUntil: Infinity,
  wake: () => {},
  calls: Promise.withResolvers(),
  done: Promise.resolve(),
})

/** Renews the leases of all attempts of this process. Aborts an attempt when another process has taken its lease or its node was cancelled. */
export async function renewLeases(
  { database, log }: { readonly database: Database; readonly log: FastifyBaseLogger },
  owner: string,
  all: Iterable<Driver>,
): Promise<void> {
  const busy = [...all].filter(({ underWay }) => underWay.size > 0)
  for (const [tenantId, drivers] of Map.groupBy(busy, (driver) => driver.tenantId)) {
    const before = drivers.map((driver) => ({ driver, nodes: [...driver.underWay] }))
    try {
      const renewed = before.flatMap(({ driver: { runId }, nodes }) => nodes.map(([id]) => [runId, id] as const))
      const [rows] = await database.batch<[{ run_id: string; id: string }[]]>(tenantId, [
        {
          name: 'workflow-renew',
          text: `UPDATE workflow_nodes n SET lease_until = clock_timestamp() + interval '${leaseMs} milliseconds'
                 FROM unnest($2::text[], $3::text[]) AS r (run_id, id)
                 WHERE n.tenant_id = $1 AND n.run_id = ANY ($2) AND n.id = ANY ($3) AND n.run_id = r.run_id AND n.id = r.id AND n.lease_owner = $4 AND n.status = 2
                 RETURNING n.run_id, n.id`,
          values: [tenantId, renewed.map(([runId]) => runId), renewed.map(([, id]) => id), owner],
        },
      ])
      const held = new Set(rows.map(({ run_id, id }) => `${run_id}\n${id}`))
      for (const { driver, nodes } of before) {
        for (const [id, abort] of nodes) if (!held.has(`${driver.runId}\n${id}`)) abort.abort()
      }
    } catch (err) {
      log.warn({ err }, 'leases of workflow nodes could not be renewed')
    }
  }
}
