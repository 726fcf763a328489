import { notFound } from '#kernel'
import { approvalErrors } from '#contracts/approvals'
import { type Caller, roleAtLeast, type TenantRole } from '#contracts/auth'
import type { TenantTx } from '#contracts/database'
import { invalidWorkflow, workflowErrors } from './errors.ts'
import { type NodeOf, partOf, roleOf, type WorkflowNode } from './node.schema.ts'
import { bytesOfNode, isKeyed } from './creation.store.ts'
import type { NodeBody } from './schema.ts'
import { branchesOf, cycleIn, edgesOf, mostEdges, nodesAgain } from './graph.ts'

export interface Found {
  readonly status: number
  readonly parent: string | null
  /** The node failed and holds its run up until a repair. */
  readonly blocks: boolean
  /** The lowest role that may decide how the node ends. */
  readonly approver: TenantRole
}
export async function nodeOf(tx: TenantTx, runId: string, nodeId: string): Promise<Found> {
  const [row] = await tx.query<{ status: number; parent: string | null; spec: string; top: string | null }>({
    text: `SELECT n.status, n.parent, n.spec, t.spec AS top FROM workflow_nodes n
           LEFT JOIN workflow_nodes t ON t.tenant_id = n.tenant_id AND t.run_id = n.run_id AND t.id = split_part(n.id, '.', 1)
           WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.id = $3`,
    values: [tx.tenantId, runId, nodeId],
  })
  if (!row) throw notFound({ message: 'This run has no such node.' })
  const spec = row.spec === '' ? partOf(JSON.parse(row.top!), nodeId) : (JSON.parse(row.spec) as WorkflowNode)
  const blocks = row.status === 4 && !spec.continueOnError
  return { status: row.status, parent: row.parent, blocks, approver: roleOf(spec) }
}

/** Rejects with 403 `wrong_approver`: a caller that may not decide an approval may neither end nor replace its node. */
export function mayDecide({ role }: Caller, { approver }: Found): void {
  if (roleAtLeast(role, approver)) return
  throw approvalErrors.wrongApprover({ message: `Only keys of the role ${approver} or above may end this node.` })
}

export async function retryNode(tx: TenantTx, runId: string, nodeId: string): Promise<void> {
  await tx.query({
    text: `UPDATE workflow_nodes SET status = CASE WHEN waits > 0 AND parent IS NULL AND type NOT IN ('map', 'loop') THEN 0 ELSE 1 END,
             tries = 0, lost = 0, waits_for = NULL, due_at = NULL, started_at = NULL, error = NULL, output = NULL, finished_at = NULL
           WHERE tenant_id = $1 AND run_id = $2 AND id = $3`,
    values: [tx.tenantId, runId, nodeId],
  })
  // Deletes the parts of a map or loop; the retry makes new ones.
  await tx.query({
    text: `DELETE FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND starts_with(id, $3)`,
    values: [tx.tenantId, runId, `${nodeId}.`],
  })
}

export async function replaceNode(tx: TenantTx, runId: string, nodeId: string, node: NodeBody): Promise<void> {
  const { dependsOn, ...rest } = node
  await tx.query({
    text: 'UPDATE workflow_nodes SET spec = $4, type = $5, priority = $6, concurrency_key = $7, effect = 0 WHERE tenant_id = $1 AND run_id = $2 AND id = $3',
    values: [
      tx.tenantId,
      runId,
      nodeId,
      JSON.stringify({ ...rest, ...(dependsOn === undefined ? {} : { dependsOn }) }),
      node.type,
      (node as { priority?: number }).priority ?? 0,
      (node as { concurrencyKey?: string }).concurrencyKey ?? null,
    ],
  })
  if (isKeyed(node)) {
    await tx.query({
      text: 'UPDATE workflow_runs SET keyed = true WHERE tenant_id = $1 AND id = $2',
      values: [tx.tenantId, runId],
    })
  }
  const before = new Map<string, readonly string[]>()
  if (Array.isArray(dependsOn)) before.set(nodeId, dependsOn as string[])
  // As in a definition, the branches of a condition depend on it.
  for (const branch of branchesOf(node)) before.set(branch, [...(before.get(branch) ?? []), nodeId])
  if (before.size > 0) await addDependencies(tx, runId, before)
}

/**
 * Adds dependencies to nodes that have not begun: to each the nodes that come before it. Existing dependencies are ignored. 400 for an unknown id, a
 * cycle or too many dependencies, 409 `node_over`.
 */
export async function addDependencies(
  tx: TenantTx,
  runId: string,
  wanted: ReadonlyMap<string, readonly string[]>,
): Promise<void> {
  const of = [tx.tenantId, runId]
  const nodes = await tx.query<{ id: string; status: number }>({
    text: 'SELECT id, status FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND parent IS NULL',
    values: of,
  })
  const known = new Map(nodes.map(({ id, status }) => [id, status]))
  const problems = [...wanted.values()].flatMap((ids) =>
    ids.flatMap((id, i) => (known.has(id) ? [] : [{ path: `dependsOn/${i}`, message: `there is no node '${id}'` }])),
  )
  if (problems.length > 0) throw invalidWorkflow(problems)
  const rows = await tx.query<{ from_node: string; to_node: string }>({
    text: 'SELECT from_node, to_node FROM workflow_edges WHERE tenant_id = $1 AND run_id = $2',
    values: of,
  })
  const edges = edgesOf(nodes.map(({ id }) => ({ id })))
  for (const { from_node, to_node } of rows) edges.get(to_node)?.add(from_node)
  const added = [...wanted]
    .map(([to, ids]) => ({ to, ids: [...new Set(ids).difference(edges.get(to) ?? new Set())] }))
    .filter(({ ids }) => ids.length > 0)
  for (const { to, ids } of added) for (const id of ids) edges.get(to)?.add(id)
  const count = added.reduce((sum, { ids }) => sum + ids.length, 0)
  if (count > 0 && rows.length + count > mostEdges)
    throw invalidWorkflow([{ path: 'dependsOn', message: `a workflow has at most ${mostEdges} dependencies` }])
  const cycle = cycleIn(edges)
  if (cycle) {
    throw invalidWorkflow([{ path: 'dependsOn', message: `the dependencies form a circle: ${cycle.join(' -> ')}` }])
  }
  if (count === 0) return
  const passed = new Set(await passedFailures(tx, runId))
  for (const { to } of added) {
    const status = known.get(to)
    if (status === undefined) throw invalidWorkflow([{ path: 'node', message: `there is no node '${to}'` }])
    if (status > 1 && (status !== 4 || passed.has(to)))
      throw workflowErrors.nodeOver({ message: `The node '${to}' runs, or is over already.` })
  }
  await tx.query({
    text: 'INSERT INTO workflow_edges (tenant_id, run_id, from_node, to_node) SELECT $1, $2, f, t FROM unnest($3::text[], $4::text[]) AS e (f, t)',
    values: [...of, added.flatMap(({ ids }) => ids), added.flatMap(({ to, ids }) => ids.map(() => to))],
  })
  // Only dependencies that have not ended have to be waited for.
  const waits = (id: string): boolean => known.get(id)! < 3 || (known.get(id) === 4 && !passed.has(id))
  const isAlive = (id: string): boolean => known.get(id) === 3 || passed.has(id)
  await tx.query({
    text: `UPDATE workflow_nodes n SET waits = n.waits + a.waits, alive = n.alive + a.alive,
             status = CASE WHEN n.status = 1 AND a.waits > 0 THEN 0 ELSE n.status END
           FROM unnest($3::text[], $4::int[], $5::int[]) AS a (id, waits, alive)
           WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.id = a.id`,
    values: [
      ...of,
      added.map(({ to }) => to),
      added.map(({ ids }) => ids.filter(waits).length),
      added.map(({ ids }) => ids.filter(isAlive).length),
    ],
  })
}

/** The ids of `from` and all nodes after it. Leaves out nodes that a condition has skipped, unless the condition itself runs again. */
async function againIn(tx: TenantTx, runId: string, from: string): Promise<string[]> {
  const of = [tx.tenantId, runId]
  const edges = await tx.query<{ from_node: string; to_node: string }>({
    text: 'SELECT from_node, to_node FROM workflow_edges WHERE tenant_id = $1 AND run_id = $2',
    values: of,
  })
  const conditions = await tx.query<{ id: string; output: string | null; spec: string }>({
    text: `SELECT id, output, spec FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND parent IS NULL AND type = 'condition' AND status = 3`,
    values: of,
  })
  const skips = conditions.map(({ id, output, spec }): [string, ReadonlySet<string>] => {
    const { then: yes = [], else: no = [] } = JSON.parse(spec) as NodeOf<'condition'>
    const [taken, left] = output === 'true' ? [yes, no] : [no, yes]
    return [id, new Set(left).difference(new Set(taken))]
  })
  const behind = Map.groupBy(edges, ({ from_node }) => from_node)
  const after = new Map([...behind].map(([id, those]) => [id, those.map(({ to_node }) => to_node)]))
  return [...nodesAgain(from, after, new Map(skips))]
}

/** Copies a run with the results of its nodes, except `from` and the nodes that run again after it. Resolves to the approximate bytes of the copy. */
export async function copyRun(
  tx: TenantTx,
  runId: string,
  id: string,
  from: string,
  createdBy: string,
): Promise<number> {
  const of = [tx.tenantId, runId, id]
  await tx.query({
    text: `INSERT INTO workflow_runs (tenant_id, id, definition_id, definition_version, name, settings, input, status, unfinished, depth, keyed,
             rerun_of, created_by, started_at, webhook_url)
           SELECT tenant_id, $3, definition_id, definition_version, name, settings, input, 1, 0, 0, keyed, $2, $4, clock_timestamp(), webhook_url
           FROM workflow_runs WHERE tenant_id = $1 AND id = $2`,
    values: [...of, createdBy],
  })
  await tx.query({
    text: `INSERT INTO workflow_edges (tenant_id, run_id, from_node, to_node)
           SELECT tenant_id, $3, from_node, to_node FROM workflow_edges WHERE tenant_id = $1 AND run_id = $2`,
    values: of,
  })
  await tx.query({
    text: `WITH kept AS (
             SELECT n.id FROM workflow_nodes n WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.parent IS NULL
               AND (n.status IN (3, 5) OR n.id = ANY ($5::text[])) AND n.id <> ALL ($4::text[])
           )
           INSERT INTO workflow_nodes (tenant_id, run_id, id, position, type, spec, parent, part, item, status, waits, alive, attempt, priority,
             concurrency_key, output, error, waits_for, started_at, finished_at)
           SELECT n.tenant_id, $3, n.id, n.position, n.type, n.spec, n.parent, n.part, n.item,
             CASE WHEN k.id IS NOT NULL THEN n.status WHEN w.waits > 0 THEN 0 ELSE 1 END, w.waits, w.alive,
             CASE WHEN k.id IS NOT NULL THEN n.attempt ELSE 0 END, n.priority, n.concurrency_key,
             CASE WHEN k.id IS NOT NULL THEN n.output END, CASE WHEN k.id IS NOT NULL THEN n.error END, CASE WHEN k.id IS NOT NULL THEN n.waits_for END,
             CASE WHEN k.id IS NOT NULL THEN n.started_at END, CASE WHEN k.id IS NOT NULL THEN n.finished_at END
           FROM workflow_nodes n LEFT JOIN kept k ON k.id = split_part(n.id, '.', 1)
           CROSS JOIN LATERAL (
             SELECT (count(*) FILTER (WHERE d.id IS NULL))::int AS waits, (count(*) FILTER (WHERE s.status IN (3, 4) AND d.id IS NOT NULL))::int AS alive
             FROM workflow_edges e LEFT JOIN kept d ON d.id = e.from_node
             LEFT JOIN workflow_nodes s ON s.tenant_id = $1 AND s.run_id = $2 AND s.id = e.from_node
             WHERE e.tenant_id = $1 AND e.run_id = $2 AND e.to_node = n.id
           ) w
           WHERE n.tenant_id = $1 AND n.run_id = $2 AND (n.parent IS NULL OR k.id IS NOT NULL)`,
    values: [...of, await againIn(tx, runId, from), await passedFailures(tx, runId)],
  })
  const [row] = await tx.query<{ bytes: number }>({
    text: `WITH made AS (
             SELECT count(*) FILTER (WHERE parent IS NULL AND status < 3) AS unfinished,
               sum(${bytesOfNode} + octet_length(spec) + coalesce(octet_length(item), 0) + coalesce(octet_length(output), 0)) AS bytes
             FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2)
           UPDATE workflow_runs r SET unfinished = made.unfinished FROM made WHERE r.tenant_id = $1 AND r.id = $2
           RETURNING (made.bytes + octet_length(r.settings) + octet_length(r.input))::float8 AS bytes`,
    values: [tx.tenantId, id],
  })
  return row!.bytes
}

/** The failed nodes with `continueOnError`, after which dependent nodes go on. */
async function passedFailures(tx: TenantTx, runId: string): Promise<string[]> {
  const rows = await tx.query<{ id: string; spec: string }>({
    text: 'SELECT id, spec FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND parent IS NULL AND status = 4',
    values: [tx.tenantId, runId],
  })
  return rows.filter(({ spec }) => (JSON.parse(spec) as WorkflowNode).continueOnError).map(({ id }) => id)
}
