import type { Statement } from '#contracts/database'
import type { WorkflowNode } from './node.schema.ts'
import { edgesOf } from './validate.ts'

/** Whoever begins a run holds the lock of its tenant, so that each is counted before the next one is begun. */
export const lockOf = (tenantId: string): Statement => ({
  name: 'workflow-lock',
  text: 'SELECT pg_advisory_xact_lock(hashtextextended($1, 58))',
  values: [tenantId],
})
export const openOf = (tenantId: string): Statement => ({
  name: 'workflow-open',
  text: 'SELECT count(*)::int AS count FROM workflow_runs WHERE tenant_id = $1 AND status IN (1, 2) AND depth = 0',
  values: [tenantId],
})

/** Whether a node, or what a map or loop does, may have a key of concurrency. */
export const mayBeKeyed = (nodes: readonly object[]): boolean => JSON.stringify(nodes).includes('"concurrencyKey"')

/** A run with its nodes and edges; no row: there is one of this id, or there are as many as may be, or its definition has changed. */
export const insertion = (values: readonly unknown[]): Statement => ({
  name: 'workflow-create',
  text: `WITH run AS (
           INSERT INTO workflow_runs (tenant_id, id, definition_id, definition_version, name, settings, input, status, unfinished, depth,
             parent_run, parent_node, root_run, schedule_id, created_by, keyed, started_at, webhook_url)
           SELECT $1, $2, $3, $4::int, $5, $6, $7, $8::smallint, $9::int, $10::int, $11, $12, $13, $14, $15, $16::boolean,
             CASE WHEN $8::smallint = 1 THEN clock_timestamp() END,
             coalesce($26, (SELECT webhook_url FROM workflow_runs WHERE tenant_id = $1 AND id = $11))
           WHERE ($17::int IS NULL OR $17::int > (
               SELECT count(*) FROM workflow_runs WHERE tenant_id = $1 AND status IN (1, 2) AND depth = 0))
             AND (NOT $27::boolean OR EXISTS (SELECT FROM workflow_definitions WHERE tenant_id = $1 AND id = $3 AND version = $4::int))
           ON CONFLICT DO NOTHING RETURNING tenant_id, id
         ), nodes AS (
           INSERT INTO workflow_nodes (tenant_id, run_id, id, position, type, spec, waits, status, priority, concurrency_key)
           SELECT run.tenant_id, run.id, n.id, n.position, n.type, n.spec, n.waits,
             CASE WHEN n.waits = 0 AND $8::smallint = 1 THEN 1 ELSE 0 END, n.priority, n.key
           FROM run, unnest($18::text[], $19::text[], $20::text[], $21::int[], $22::int[], $23::text[]) WITH ORDINALITY
             AS n (id, type, spec, waits, priority, key, position)
         ), edges AS (
           INSERT INTO workflow_edges (tenant_id, run_id, from_node, to_node)
           SELECT run.tenant_id, run.id, e.f, e.t FROM run, unnest($24::text[], $25::text[]) AS e (f, t)
         )
         SELECT 1 FROM run`,
  values,
})

/** The columns of nodes, and of the edges that lead to them. */
export function columnsOf(nodes: readonly WorkflowNode[], specs: readonly string[]): readonly unknown[] {
  const edges = edgesOf(nodes)
  const pairs = [...edges].flatMap(([to, before]) => [...before].map((from) => [from, to] as const))
  return [
    nodes.map(({ id }) => id),
    nodes.map(({ type }) => type),
    specs,
    nodes.map(({ id }) => edges.get(id)?.size ?? 0),
    nodes.map(({ priority }) => priority ?? 0),
    nodes.map(({ concurrencyKey }) => concurrencyKey ?? null),
    pairs.map(([from]) => from),
    pairs.map(([, to]) => to),
  ]
}
