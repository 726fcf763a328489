import { approvalErrors } from '#contracts/approvals'
import { type Caller, roleAtLeast, roles, type TenantRole } from '#contracts/auth'
import type { TenantTx } from '#contracts/database'
import { topOf } from './node.schema.ts'
import { cancelled, failed, ok, skipped } from './nodes.store.ts'

/** An action on a node that could bypass an approval which the caller may not decide. */
type Passing = 'end' | 'skip' | 'replace' | 'rerun'

/** A top-level node of a run that is an approval, or in whose parts or child workflows there is one. */
interface Asking {
  readonly top: string
  readonly role: TenantRole
}

/**
 * Rejects with 403 `wrong_approver` when an action on a node could bypass an approval whose role the caller does not have. Ending a node starts the
 * nodes after it; skipping a node, or making it wait for one that may be skipped, may skip an approval after it; a replaced node is not the one that
 * was approved; and a rerun would repeat what was approved once.
 */
export async function mayPass(
  tx: TenantTx,
  { role }: Caller,
  run: { readonly runId: string; readonly nodeIds: readonly string[]; readonly passing: Passing },
): Promise<void> {
  const { runId, nodeIds, passing } = run
  // The highest role may decide everything.
  if (nodeIds.length === 0 || role === roles.at(-1)) return
  const above = await askingAbove(tx, runId, role, passing)
  if (above.length === 0) return
  const edges = await tx.query<{ from_node: string; to_node: string }>({
    text: 'SELECT from_node, to_node FROM workflow_edges WHERE tenant_id = $1 AND run_id = $2',
    values: [tx.tenantId, runId],
  })
  const near = reached(
    nodeIds.map(topOf),
    Map.groupBy(edges, ({ to_node }) => to_node),
    'from_node',
  )
  // A rerun from the approval itself asks again.
  if (passing === 'rerun') for (const id of nodeIds) near.delete(id)
  if (passing === 'skip') {
    const after = reached(
      nodeIds,
      Map.groupBy(edges, ({ from_node }) => from_node),
      'to_node',
    )
    for (const id of after) near.add(id)
  }
  const found = above.find(({ top }) => near.has(top))
  if (found) throw refusal(found, passing)
}

/**
 * JSON as PostgreSQL can look into it: without the escapes of what is none of its characters, such as a NUL. None of the names and values that are looked
 * for has any.
 */
const readable = (json: string): string => `replace(replace(${json}, '\\\\', ''), '\\u', '')::json`

/** The top-level nodes of a run whose approvals matter for an action, and are of a role that the caller does not have. */
const askingAbove = (tx: TenantTx, runId: string, role: TenantRole, passing: Passing): Promise<Asking[]> =>
  tx.query<Asking>({
    text: askingText,
    values: [
      tx.tenantId,
      runId,
      roles.filter((one) => !roleAtLeast(role, one)),
      passing === 'replace' ? null : passing === 'rerun',
    ],
  })

/** Whether a node is over for good. One that failed may hold up its run, map or loop; a failed child workflow has cancelled what it had not asked. */
const isOver = (holdsUp: string): string =>
  `(i.over OR NOT (n.status < ${ok} OR n.status = ${cancelled} AND i.top IS NOT NULL OR n.status = ${failed} AND ${holdsUp}))`

/** The fields of a node that are looked at. All of them are read at once: each look at one would parse the whole node. */
const fieldsOf = (json: string): string =>
  `json_to_record(${json}) AS spec (type text, role text, "workflowDefinitionId" text, "continueOnError" text, node json)`
const fields = 'spec.type, spec.role, spec."workflowDefinitionId" AS definition, spec.node'

/** The approvals and child workflows among nodes, and what the parts of maps and loops are, at any depth. */
const innerOf = (columns: string, from: string): string => `
  WITH RECURSIVE node AS (
    SELECT ${columns}, type, role, definition, node FROM (${from}) outermost
    UNION ALL
    SELECT ${columns}, ${fields} FROM node, ${fieldsOf('node.node')} WHERE node.type IN ('map', 'loop')
  )
  SELECT ${columns}, CASE type WHEN 'approval' THEN coalesce(role, 'member') END AS role, CASE type WHEN 'workflow' THEN definition END AS definition
  FROM node WHERE type IN ('approval', 'workflow')`

/** What a definition asks, by its present version, and which definitions its child workflows have. */
const toldBy = (id: string): string => `
  SELECT DISTINCT role, definition FROM (${innerOf(
    'id',
    `SELECT d.id, ${fields} FROM workflow_definitions d
     JOIN workflow_versions v ON v.tenant_id = d.tenant_id AND v.definition_id = d.id AND v.version = d.version,
     json_array_elements(${readable('v.document')} -> 'nodes') AS each, ${fieldsOf('each')}
     WHERE d.tenant_id = $1 AND d.id = ${id} AND (v.document LIKE '%"approval"%' OR v.document LIKE '%"workflow"%')`,
  )}) inner_nodes`

/**
 * One row for each top-level node that asks, whatever its children are: a map may have thousands of them, each with thousands of approvals. So all of it
 * stays in the database. A child that has not begun, or whose run the node does not know yet, asks what its definition says: nobody gets around an
 * approval by being early. An id of a top-level node is computed apart from the rest (OFFSET 0), or no index would find that node.
 */
const askingText = `
  WITH RECURSIVE inside AS (
    -- The run, and the runs of its child workflows with the top-level node that waits for them and whether that is over.
    SELECT $2::text AS run_id, NULL::text AS top, false AS over
    UNION
    SELECT n.waits_for, coalesce(i.top, own.top), ${isOver(
      `CASE WHEN n.parent IS NULL THEN (${readable('n.spec')} ->> 'continueOnError' = 'true') IS NOT TRUE ELSE t.status < ${ok} END`,
    )}
    FROM inside i JOIN workflow_nodes n ON n.tenant_id = $1 AND n.run_id = i.run_id AND n.type = 'workflow' AND n.waits_for IS NOT NULL
      AND n.status <> ${skipped}
    CROSS JOIN LATERAL (SELECT split_part(n.id, '.', 1) AS top OFFSET 0) own
    LEFT JOIN workflow_nodes t ON t.tenant_id = $1 AND t.run_id = n.run_id AND t.id = own.top
  ), asked AS MATERIALIZED (
    SELECT DISTINCT top, over, role, definition FROM (${innerOf(
      'top, begun, over',
      `SELECT coalesce(i.top, n.id) AS top, n.type = 'workflow' AND n.waits_for IS NOT NULL AS begun,
         ${isOver(`(spec."continueOnError" = 'true') IS NOT TRUE`)} AS over, ${fields}
       FROM inside i JOIN workflow_nodes n ON n.tenant_id = $1 AND n.run_id = i.run_id AND n.parent IS NULL AND n.status <> ${skipped}
         AND (n.type IN ('approval', 'workflow') OR n.type IN ('map', 'loop') AND (n.spec LIKE '%"approval"%' OR n.spec LIKE '%"workflow"%')),
       ${fieldsOf(readable('n.spec'))}`,
    )}) inner_nodes
    WHERE role = ANY ($3) AND ($4::boolean IS NULL OR over = $4) OR definition IS NOT NULL AND NOT begun AND NOT over AND $4 IS NOT TRUE
  ), early AS (
    SELECT definition AS id FROM asked WHERE definition IS NOT NULL
    UNION
    SELECT told.definition FROM early CROSS JOIN LATERAL (${toldBy('early.id')}) told WHERE told.definition IS NOT NULL
  ), told AS MATERIALIZED (
    SELECT early.id, told.role, told.definition FROM early CROSS JOIN LATERAL (${toldBy('early.id')}) told
  ), deep AS (
    SELECT id, role FROM told WHERE role = ANY ($3)
    UNION
    SELECT told.id, deep.role FROM deep JOIN told ON told.definition = deep.id
  )
  SELECT DISTINCT ON (top) top, role FROM (
    SELECT top, role FROM asked WHERE role IS NOT NULL
    UNION ALL
    SELECT asked.top, deep.role FROM asked JOIN deep ON deep.id = asked.definition
  ) asking ORDER BY top, role`

/** The given nodes and all nodes that can be reached from them along `edges`. */
function reached<K extends string>(
  from: readonly string[],
  edges: ReadonlyMap<string, readonly Readonly<Record<K, string>>[]>,
  next: K,
): Set<string> {
  const found = new Set(from)
  for (const id of found) for (const edge of edges.get(id) ?? []) found.add(edge[next])
  return found
}

function refusal({ top, role }: Asking, passing: Passing) {
  const told = {
    end: 'This node would bypass it',
    skip: 'Skipping this node, or making it wait for others, could bypass it',
    replace: 'A node after it cannot be replaced without their decision',
    rerun: `A rerun would repeat what was approved once: begin it from '${top}', so that it is asked again`,
  }[passing]
  return approvalErrors.wrongApprover({
    message: `Only keys of the role ${role} or above may decide the approval '${top}'. ${told}.`,
  })
}
