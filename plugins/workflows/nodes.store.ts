import type { Statement, TenantTx } from '#contracts/database'
import { storable } from '#kit'
import { type Failure, mostOutput, type Outcome, type Over, unsaid } from './outcome.ts'
import { linkMark } from './outputs.ts'
import { type InnerNode, type NodeType, partOf, topOf, type WorkflowNode } from './node.schema.ts'
import { nodeStatuses } from './schema.ts'

export interface NodeRow {
  readonly id: string
  readonly type: NodeType
  readonly spec: string
  readonly parent: string | null
  readonly part: number | null
  readonly item: string | null
  readonly status: number
  readonly attempt: number
  readonly effect: number
  readonly tries: number
  readonly lost: number
  readonly concurrency_key: string | null
  readonly waits_for: string | null
  /** A process executes the node under a lease. */
  readonly leased: boolean
  readonly reserved_cents: number
  readonly started_ms: number | null
  /** The time by the clock of the database, since the clocks of processes may be wrong. */
  readonly now_ms: number
}
export const nodeColumns = `n.id, n.type, n.spec, n.parent, n.part, n.item, n.status, n.attempt, n.effect, n.tries, n.lost, n.concurrency_key,
  n.waits_for, n.lease_until IS NOT NULL AS leased, n.reserved_cents, (extract(epoch FROM n.started_at) * 1000)::float8 AS started_ms,
  (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now_ms`

/** How long a lease of an attempt lasts if it is not renewed. */
export const leaseMs = 30_000

export const statusOf = (status: (typeof nodeStatuses)[number]): number => nodeStatuses.indexOf(status)
export const [pending, ready, running, ok, failed, skipped, cancelled] = nodeStatuses.map(statusOf) as [
  number,
  number,
  number,
  number,
  number,
  number,
  number,
]

export interface Ended {
  readonly row: NodeRow
  readonly status: number
  readonly output: string | undefined
  readonly error: Failure | undefined
  readonly costCents: number | undefined
}

/** A map or loop of which parts have ended: `over` of them just now, so that `waits` are left. */
export type Counted = NodeRow & { readonly waits: number; readonly over: number }

/** A row of `endedWell`: a node that ended, a dependent node that became ready, or the map or loop that ended parts belong to. */
export interface EndedWell extends Pick<NodeRow, 'id' | 'parent' | 'attempt' | 'concurrency_key' | 'status'> {
  readonly kind: 'ended' | 'ready' | 'counted'
  /** Of the last kind. */
  readonly counted: Counted | null
}

/** A node whose status changed. */
export interface Moved {
  readonly id: string
  readonly status: number
  readonly attempt: number
}

/** The nodes of one run, in the transaction that holds it. */
export class NodeTable {
  readonly #tx: TenantTx
  readonly #of: readonly [tenantId: string, runId: string]
  /** Specs by node id. A part has no spec in its own row: it is inside the spec of the top-level map or loop, at any depth. */
  readonly #specs = new Map<string, WorkflowNode>()
  constructor(tx: TenantTx, runId: string) {
    this.#tx = tx
    this.#of = [tx.tenantId, runId]
  }

  async load(ids: readonly string[]): Promise<Map<string, NodeRow>> {
    const rows = await this.#tx.query<NodeRow>({
      name: 'workflow-nodes',
      text: `SELECT ${nodeColumns} FROM workflow_nodes n WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.id = ANY ($3)`,
      values: [...this.#of, ids],
    })
    await this.loadSpecs(rows)
    return new Map(rows.map((row) => [row.id, row]))
  }

  async loadSpecs(rows: readonly NodeRow[]): Promise<void> {
    for (const { id, spec } of rows) if (spec !== '') this.#specs.set(id, JSON.parse(spec) as WorkflowNode)
    const missing = new Set(rows.map(({ id }) => topOf(id)).filter((id) => !this.#specs.has(id)))
    if (missing.size === 0) return
    const tops = await this.#tx.query<{ id: string; spec: string }>({
      name: 'workflow-specs',
      text: 'SELECT id, spec FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND id = ANY ($3)',
      values: [...this.#of, [...missing]],
    })
    for (const { id, spec } of tops) this.#specs.set(id, JSON.parse(spec) as WorkflowNode)
  }

  spec({ id }: Pick<NodeRow, 'id'>): WorkflowNode {
    return this.#specs.get(id) ?? partOf(this.#specs.get(topOf(id))!, id)
  }

  /** Ids are passed twice, as everywhere in this file: until the tables are analyzed, a join alone reads the whole run in every step. */
  async write(ended: readonly Ended[]): Promise<void> {
    await this.#tx.query({
      name: 'workflow-end-nodes',
      text: `UPDATE workflow_nodes n SET status = u.status, output = u.output, error = u.error, cost_cents = n.cost_cents + u.cost, reserved_cents = 0,
               finished_at = clock_timestamp(), lease_owner = NULL, lease_until = NULL, due_at = NULL,
               effect = CASE WHEN u.unknown THEN n.effect ELSE 0 END
             FROM unnest($3::text[], $4::smallint[], $5::text[], $6::text[], $7::float8[], $8::boolean[])
               AS u (id, status, output, error, cost, unknown)
             WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.id = ANY ($3) AND n.id = u.id`,
      values: [
        ...this.#of,
        ended.map(({ row }) => row.id),
        ended.map(({ status }) => status),
        ended.map(({ output }) => output ?? null),
        ended.map(({ error, status }) =>
          error ? JSON.stringify(error) : status === failed ? JSON.stringify(unsaid) : null,
        ),
        ended.map(({ costCents }) => costCents ?? 0),
        ended.map(({ error }) => error?.unknown ?? false),
      ],
    })
  }

  /**
   * Ends successful nodes and updates the nodes that depend on them, in one statement, since most outcomes are like this. Its rows are the nodes that
   * were still running in this very attempt, the dependents that became ready, and the running maps and loops that wait for one part less.
   */
  endedWell(outcomes: readonly Over[]): Statement {
    return {
      name: 'workflow-end-well',
      text: `WITH over AS (
               UPDATE workflow_nodes n SET status = ${ok}, output = u.output, error = NULL, cost_cents = n.cost_cents + u.cost, reserved_cents = 0,
                 finished_at = clock_timestamp(), lease_owner = NULL, lease_until = NULL, due_at = NULL, effect = 0
               FROM unnest($3::text[], $4::int[], $5::text[], $6::float8[]) AS u (id, attempt, output, cost)
               WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.id = ANY ($3) AND n.id = u.id AND n.status = ${running} AND n.attempt = u.attempt
               RETURNING n.id, n.parent, n.attempt, n.concurrency_key
             ), parts AS (
               SELECT parent, count(*)::int AS over FROM over WHERE parent IS NOT NULL GROUP BY 1
             ), counted AS (
               UPDATE workflow_nodes n SET waits = n.waits - parts.over FROM parts
               WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.id = ANY (ARRAY(SELECT parent FROM parts)) AND n.id = parts.parent
                 AND n.status = ${running}
               RETURNING ${nodeColumns}, n.waits, parts.over
             ), less AS (
               SELECT to_node, count(*)::int AS n FROM workflow_edges
               WHERE tenant_id = $1 AND run_id = $2 AND from_node = ANY (ARRAY(SELECT id FROM over WHERE parent IS NULL)) GROUP BY 1
             ), moved AS (
               UPDATE workflow_nodes n SET waits = n.waits - less.n, alive = n.alive + less.n,
                 status = CASE WHEN n.waits > less.n THEN ${pending} ELSE ${ready} END
               FROM less WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.id = ANY (ARRAY(SELECT to_node FROM less)) AND n.id = less.to_node
                 AND n.status = ${pending}
               RETURNING n.id, n.status, n.attempt
             )
             SELECT 'ended' AS kind, id, parent, attempt, concurrency_key, ${ok} AS status, NULL::json AS counted FROM over
             UNION ALL SELECT 'ready', id, NULL, attempt, NULL, status, NULL FROM moved WHERE status = ${ready}
             UNION ALL SELECT 'counted', id, NULL, attempt, NULL, status, to_json(counted) FROM counted`,
      values: [
        ...this.#of,
        outcomes.map(({ node }) => node),
        outcomes.map(({ attempt }) => attempt),
        outcomes.map(({ output }) => output ?? null),
        outcomes.map(({ costCents }) => costCents ?? 0),
      ],
    }
  }

  /** Updates the nodes that depend on ended nodes. Resolves to those that became ready or are skipped. */
  async pass(over: readonly { id: string; alive: boolean }[]): Promise<Moved[]> {
    const rows = await this.#tx.query<Moved>({
      name: 'workflow-pass',
      text: `WITH less AS (
               SELECT to_node, count(*)::int AS n, (count(*) FILTER (WHERE from_node = ANY ($4)))::int AS alive
               FROM workflow_edges WHERE tenant_id = $1 AND run_id = $2 AND from_node = ANY ($3) GROUP BY 1
             )
             UPDATE workflow_nodes n SET waits = n.waits - less.n, alive = n.alive + less.alive,
               status = CASE WHEN n.waits > less.n THEN ${pending} WHEN n.alive + less.alive > 0 THEN ${ready} ELSE ${skipped} END,
               finished_at = CASE WHEN n.waits <= less.n AND n.alive + less.alive = 0 THEN clock_timestamp() END
             FROM less
             WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.id = ANY (ARRAY(SELECT to_node FROM less)) AND n.id = less.to_node
               AND n.status = ${pending}
             RETURNING n.id, n.status, n.attempt`,
      values: [...this.#of, over.map(({ id }) => id), over.filter(({ alive }) => alive).map(({ id }) => id)],
    })
    return rows.filter(({ status }) => status !== pending)
  }

  async skip(ids: readonly string[]): Promise<Moved[]> {
    return this.#tx.query<Moved>({
      text: `UPDATE workflow_nodes SET status = ${skipped}, finished_at = clock_timestamp(), due_at = NULL
             WHERE tenant_id = $1 AND run_id = $2 AND id = ANY ($3) AND status IN (${pending}, ${ready}) RETURNING id, status, attempt`,
      values: [...this.#of, ids],
    })
  }

  /** Cancels all nodes of the run that have not ended. */
  async cancel(): Promise<NodeRow[]> {
    return this.#tx.query<NodeRow>({
      text: `UPDATE workflow_nodes n SET status = ${cancelled}, finished_at = clock_timestamp(), lease_owner = NULL, lease_until = NULL,
               due_at = NULL
             WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.status IN (${pending}, ${ready}, ${running}) RETURNING ${nodeColumns}`,
      values: [...this.#of],
    })
  }

  /** Cancels parts of maps and loops, at any depth, that have not ended or whose failure holds the run up. Resolves to the cancelled parts. */
  async cancelBelow(rows: readonly NodeRow[]): Promise<NodeRow[]> {
    const divided = rows.filter(({ type }) => type === 'map' || type === 'loop')
    if (divided.length === 0) return []
    const open = await this.#tx.query<NodeRow>({
      text: `SELECT ${nodeColumns} FROM workflow_nodes n JOIN unnest($3::text[]) AS u (id) ON starts_with(n.id, u.id || '.')
             WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.status IN (${pending}, ${ready}, ${running}, ${failed})`,
      values: [...this.#of, divided.map(({ id }) => id)],
    })
    await this.loadSpecs(open)
    const parts = open.filter((row) => row.status !== failed || !this.spec(row).continueOnError)
    const over = { status: cancelled, output: undefined, error: undefined, costCents: undefined }
    await this.write(parts.map((row) => ({ row, ...over })))
    return parts
  }

  /** Counts ended parts of a map or loop. Undefined: the map or loop itself has ended already. */
  async partsOver(parent: string, over: number): Promise<Counted | undefined> {
    const [row] = await this.#tx.query<Counted>({
      name: 'workflow-part-over',
      text: `UPDATE workflow_nodes n SET waits = n.waits - $4
             WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.id = $3 AND n.status = ${running} RETURNING ${nodeColumns}, n.waits, $4::int AS over`,
      values: [...this.#of, parent, over],
    })
    return row
  }

  /** Adds to the attempt and lost counters of a node. */
  async count(
    id: string,
    { attempt = 0, lost = 0 }: { readonly attempt?: number; readonly lost?: number },
  ): Promise<void> {
    await this.#tx.query({
      name: 'workflow-count',
      text: 'UPDATE workflow_nodes SET attempt = attempt + $4, lost = lost + $5 WHERE tenant_id = $1 AND run_id = $2 AND id = $3',
      values: [...this.#of, id, attempt, lost],
    })
  }

  /** Makes a node wait. If the signal that the node would wait for came before, resolves to its payload and the node does not wait. */
  async park(row: NodeRow, { waitsFor, dueInMs }: Extract<Outcome, { kind: 'parked' }>): Promise<string | undefined> {
    if (row.type === 'wait' && waitsFor !== undefined) {
      const [sent] = await this.#tx.query<{ payload: string }>({
        text: `WITH sent AS (SELECT name, payload, later FROM workflow_signals WHERE tenant_id = $1 AND run_id = $2 AND name = $3),
               last AS (DELETE FROM workflow_signals WHERE tenant_id = $1 AND run_id = $2 AND name IN (SELECT name FROM sent WHERE later = '{}')),
               next AS (UPDATE workflow_signals SET payload = later[1], later = later[2:]
                        WHERE tenant_id = $1 AND run_id = $2 AND name IN (SELECT name FROM sent WHERE later <> '{}'))
               SELECT payload FROM sent`,
        values: [...this.#of, waitsFor.slice(waitsFor.lastIndexOf('/') + 1)],
      })
      if (sent) return sent.payload
    }
    await this.#tx.query({
      name: 'workflow-park',
      text: `UPDATE workflow_nodes SET lease_owner = NULL, lease_until = NULL, waits_for = $4,
               due_at = clock_timestamp() + $5::float8 * interval '1 millisecond'
             WHERE tenant_id = $1 AND run_id = $2 AND id = $3`,
      values: [...this.#of, row.id, waitsFor ?? null, dueInMs ?? null],
    })
    return undefined
  }

  /** Adds parts to a map or loop. */
  async divide(row: NodeRow, { items, first, atOnce }: Extract<Outcome, { kind: 'parts' }>): Promise<void> {
    const inner = (this.spec(row) as unknown as { node: InnerNode }).node
    await this.#tx.query({
      text: `WITH parent AS (
               UPDATE workflow_nodes SET lease_owner = NULL, lease_until = NULL, waits = $4
               WHERE tenant_id = $1 AND run_id = $2 AND id = $3 RETURNING position
             )
             INSERT INTO workflow_nodes (tenant_id, run_id, id, position, type, spec, parent, part, item, status, priority, concurrency_key)
             SELECT $1, $2, $3 || '.' || ($5::int + i.part - 1), parent.position, $6, '', $3, $5::int + i.part - 1, i.item,
               CASE WHEN i.part <= $7::int THEN ${ready} ELSE ${pending} END, $8, $9
             FROM parent, unnest($10::text[]) WITH ORDINALITY AS i (item, part)`,
      values: [
        ...this.#of,
        row.id,
        items.length,
        first,
        inner.type,
        atOnce,
        inner.priority ?? 0,
        inner.concurrencyKey === undefined ? null : storable(inner.concurrencyKey),
        items,
      ],
    })
  }

  /** Makes further parts ready, in their order. */
  async nextParts(parent: string, most: number): Promise<string[]> {
    const rows = await this.#tx.query<{ id: string }>({
      name: 'workflow-next-parts',
      text: `UPDATE workflow_nodes SET status = ${ready}
             WHERE tenant_id = $1 AND run_id = $2 AND id = ANY (ARRAY(
               SELECT id FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND parent = $3 AND status = ${pending} ORDER BY part LIMIT $4))
             RETURNING id`,
      values: [...this.#of, parent, most],
    })
    return rows.map(({ id }) => id)
  }

  /** Joins the outputs of the parts of a map, in order. Undefined: together they have more than `most` bytes, or one is a link. */
  async gather(row: Pick<NodeRow, 'id'>, most: number): Promise<string | undefined> {
    const parts = await this.#tx.query<{ output: string | null }>({
      text: `SELECT output FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND parent = $3
               AND $4::bigint >= (SELECT coalesce(sum(octet_length(output) + CASE WHEN starts_with(output, '${linkMark}') THEN $4::bigint ELSE 0 END), 0)
                          FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND parent = $3)
             ORDER BY part`,
      values: [...this.#of, row.id, Math.min(most, mostOutput)],
    })
    return parts.length === 0 ? undefined : `[${parts.map((part) => part.output ?? 'null').join(',')}]`
  }

  /** Makes a node ready again. */
  async again(
    row: NodeRow,
    { inMs, tries = 0, error, costCents = 0 }: { inMs: number; tries?: number; error?: Failure; costCents?: number },
  ): Promise<void> {
    const told = error ? JSON.stringify(error) : null
    await this.#tx.query({
      name: 'workflow-again',
      text: `UPDATE workflow_nodes SET status = ${ready}, lease_owner = NULL, lease_until = NULL, waits_for = NULL, tries = tries + $5,
               cost_cents = cost_cents + $8, reserved_cents = 0, effect = CASE WHEN $6::boolean THEN effect ELSE 0 END, error = $7,
               due_at = CASE WHEN $4::float8 > 0 THEN clock_timestamp() + $4::float8 * interval '1 millisecond' END
             WHERE tenant_id = $1 AND run_id = $2 AND id = $3`,
      values: [...this.#of, row.id, inMs, tries, error?.unknown ?? false, told, costCents],
    })
  }
}
