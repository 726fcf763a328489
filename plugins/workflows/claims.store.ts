import type { Statement, TenantTx } from '#contracts/database'
import type { WorkflowNode } from './node.schema.ts'
import { leaseMs, nodeColumns, type NodeRow, type NodeTable, ready, running } from './nodes.store.ts'
import { starts } from './notices.ts'
import { type Claimed, overBudget } from './outcome.ts'
import type { RunRow } from './run-row.ts'

/** How often a node checks whether others have released a part of the run's budget. */
const waitsForBudgetMs = 2_000

type Refused =
  | { readonly kind: 'later'; readonly inMs: number }
  | { readonly kind: 'over'; readonly status: 'error'; readonly error: typeof overBudget }

const claimText = (which: string): string => `
  UPDATE workflow_nodes n SET status = ${running}, attempt = n.attempt + 1, lease_owner = $4, due_at = NULL, waits_for = NULL,
    effect = CASE WHEN n.effect > 0 THEN n.effect ELSE n.attempt + 1 END,
    lease_until = clock_timestamp() + interval '${leaseMs} milliseconds', started_at = coalesce(n.started_at, clock_timestamp())
  WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.id = ANY (ARRAY(
    SELECT id FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND status = ${ready}
      AND (due_at IS NULL OR due_at <= clock_timestamp()) AND (${which})
    ORDER BY priority DESC, position, part LIMIT $3))
  RETURNING ${nodeColumns}`
/** SQL condition: the run is running, has no concurrency keys, and no failed node holds it up. */
const goesOn = `EXISTS (SELECT FROM workflow_runs WHERE tenant_id = $1 AND id = $2 AND status = 1 AND failed = 0 AND NOT keyed)`
const allRest = `NOT EXISTS (SELECT FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND status = ${running})`

/**
 * A claim of at most `most` nodes that is sent with the first statements of a step, to save a round trip. It claims only what is safe to claim before
 * their results are known.
 */
export interface FirstClaim {
  readonly owner: string
  readonly most: number
}
/** `looks`: the step also looks for due nodes, whose outcomes come first. The claim then takes nodes only if no node is running. */
export const firstClaim = (
  tenantId: string,
  runId: string,
  { owner, most }: FirstClaim,
  looks: boolean,
): Statement => ({
  name: looks ? 'workflow-claim-first' : 'workflow-claim-next',
  text: claimText(`concurrency_key IS NULL AND ${goesOn}${looks ? ` AND ${allRest}` : ''}`),
  values: [tenantId, runId, most, owner],
})

/** Claims ready nodes of a run, in the transaction that holds it. */
export class Claims {
  readonly #tx: TenantTx
  readonly #of: readonly [tenantId: string, runId: string]
  readonly #nodes: NodeTable
  readonly #run: RunRow
  constructor(tx: TenantTx, run: RunRow, nodes: NodeTable) {
    this.#tx = tx
    this.#run = run
    this.#of = [tx.tenantId, run.id]
    this.#nodes = nodes
  }

  /** Claims ready nodes for the time of a lease, the most urgent first. `freed`: concurrency keys that this transaction has freed. */
  async take(owner: string, most: number, freed: Iterable<string>): Promise<NodeRow[]> {
    const free = this.#run.keyed ? await this.#keyed(most, freed) : []
    const rows = await this.#tx.query<NodeRow>({
      name: 'workflow-claim',
      text: claimText('concurrency_key IS NULL OR id = ANY ($5)'),
      values: [...this.#of, most, owner, free],
    })
    await this.#nodes.loadSpecs(rows)
    return rows
  }

  /**
   * Divides the budget among claimed nodes, so that all nodes of a run together never cost more than it allows. Each gets an equal share of what is
   * left; one share stays for nodes still to come. If nothing is left, agents and child workflows wait for others to give something back, or fail.
   */
  async budget(rows: readonly NodeRow[]): Promise<{ readonly cents?: number; readonly refused?: Refused }> {
    const { settings, unfinished } = this.#run
    const { maxCostCents } = settings
    const ids = rows.filter(({ type }) => starts(type)).map(({ id }) => id)
    if (maxCostCents === undefined || ids.length === 0) return {}
    const parts = ids.length + (unfinished > ids.length ? 1 : 0)
    const { share, others } = await this.#reserve(ids, { maxCents: maxCostCents, parts })
    if (share > 0) return { cents: share }
    return {
      refused:
        others > 0 ? { kind: 'later', inMs: waitsForBudgetMs } : { kind: 'over', status: 'error', error: overBudget },
    }
  }

  /** Divides the cents of `maxCents` that are not spent or reserved into `parts` shares and reserves one per node. `others`: cents reserved before. */
  async #reserve(
    ids: readonly string[],
    { maxCents, parts }: { readonly maxCents: number; readonly parts: number },
  ): Promise<{ readonly share: number; readonly others: number }> {
    const [row] = await this.#tx.query<{ share: number; others: number }>({
      name: 'workflow-reserve',
      text: `WITH used AS (
               SELECT greatest(0, $4::float8 - sum(cost_cents) - sum(reserved_cents)) / $5::int AS share, sum(reserved_cents) AS others
               FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2
             ), reserved AS (
               UPDATE workflow_nodes SET reserved_cents = share FROM used WHERE tenant_id = $1 AND run_id = $2 AND id = ANY ($3)
             )
             SELECT share, others FROM used`,
      values: [...this.#of, ids, maxCents, parts],
    })
    return row!
  }

  /** At most 20 running runs that have ready nodes with a freed key. Paused runs could not use the key and would take the place of runs that can. */
  async waiting(key: string): Promise<string[]> {
    await this.#lock(key)
    const rows = await this.#tx.query<{ run_id: string }>({
      text: `SELECT DISTINCT n.run_id FROM workflow_nodes n JOIN workflow_runs r ON r.tenant_id = n.tenant_id AND r.id = n.run_id
             WHERE n.tenant_id = $1 AND n.concurrency_key = $2 AND n.status = ${ready} AND r.status = 1 LIMIT 20`,
      values: [this.#of[0], key],
    })
    return rows.map(({ run_id }) => run_id)
  }

  /**
   * The ready nodes with a concurrency key whose limit leaves room. Every transaction that uses or frees a key holds the lock of the key, and takes
   * all of its locks in the same order to avoid deadlocks.
   */
  async #keyed(most: number, freed: Iterable<string>): Promise<string[]> {
    const keyed = await this.#tx.query<{ id: string; key: string }>({
      name: 'workflow-keyed',
      text: `SELECT id, concurrency_key AS key FROM workflow_nodes
             WHERE tenant_id = $1 AND run_id = $2 AND status = ${ready} AND concurrency_key IS NOT NULL
               AND (due_at IS NULL OR due_at <= clock_timestamp())
             ORDER BY priority DESC, position, part LIMIT $3`,
      values: [...this.#of, most],
    })
    if (keyed.length === 0) return []
    const rows = await this.#nodes.load(keyed.map(({ id }) => id))
    const free: string[] = []
    const byKey = Map.groupBy(keyed, (one) => one.key)
    for (const key of [...new Set([...byKey.keys(), ...freed])].toSorted()) {
      const used = await this.#lock(key)
      for (const [i, { id }] of (byKey.get(key) ?? []).entries()) {
        if (used + i < (this.#nodes.spec(rows.get(id)!).concurrencyLimit ?? 1)) free.push(id)
      }
    }
    return free
  }
  async #lock(key: string): Promise<number> {
    const [tenantId] = this.#of
    await this.#tx.query({
      text: `SELECT pg_advisory_xact_lock(hashtextextended($1, 17))`,
      values: [`${tenantId}\n${key}`],
    })
    const [row] = await this.#tx.query<{ used: number }>({
      text: `SELECT count(*)::int AS used FROM workflow_nodes WHERE tenant_id = $1 AND concurrency_key = $2 AND status = ${running}`,
      values: [tenantId, key],
    })
    return row!.used
  }
}

export type DueRow = NodeRow & { readonly lease_ms: number | null }
/**
 * The due nodes of a run, and the leased ones with the milliseconds left of their leases. A node leased by `owner` but not in `underWay` has 0 left:
 * the owner did not learn that its claim was stored, so it never started the node.
 */
export const dueNodes = (
  tenantId: string,
  runId: string,
  { owner, underWay }: { readonly owner: string; readonly underWay: readonly string[] },
): Statement => ({
  name: 'workflow-due',
  text: `SELECT ${nodeColumns}, CASE WHEN n.lease_owner = $3 THEN 0
             ELSE (extract(epoch FROM n.lease_until - clock_timestamp()) * 1000)::float8 END AS lease_ms
           FROM workflow_nodes n
           WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.status = ${running}
             AND (n.lease_until IS NOT NULL AND NOT (n.lease_owner = $3 AND n.id = ANY ($4))
               OR n.lease_until IS NULL AND n.due_at <= clock_timestamp())`,
  values: [tenantId, runId, owner, underWay],
})

/** Converts the row of a claimed node to what its attempt needs. */
export const claimedOf = (
  { id, attempt, effect, part, item, started_ms, now_ms }: NodeRow,
  spec: WorkflowNode,
  budgetCents: number | undefined,
): Claimed => ({
  id,
  attempt,
  effect,
  spec,
  part: part ?? undefined,
  item: item ?? undefined,
  startedMs: started_ms ?? now_ms,
  nowMs: now_ms,
  budgetCents,
})
