import { approvalErrors } from '#contracts/approvals'
import { type Caller, roleAtLeast, roles, type TenantRole } from '#contracts/auth'
import type { TenantTx } from '#contracts/database'
import { topOf } from './node.schema.ts'
import { cancelled, failed, ok, skipped } from './nodes.store.ts'

/** An action on a node that could bypass an approval which the caller may not decide. */
type Passing = 'end' | 'skip' | 'replace' | 'rerun'

/** An approval of a run, or of a child workflow of it. */
interface Asking {
  /** The top-level node of the run that contains the approval: the approval itself, a map or loop, or a child workflow. */
  readonly top: string
  readonly role: TenantRole
  /** It is undecided, or it was rejected and holds its run up. Otherwise it was decided, and its result is kept. */
  readonly isOpen: boolean
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
  const counts = ({ isOpen }: Asking): boolean => passing === 'replace' || isOpen === (passing !== 'rerun')
  const above = (await askingIn(tx, runId)).filter((one) => counts(one) && !roleAtLeast(role, one.role))
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

interface AskingRow {
  readonly run_id: string
  readonly id: string
  readonly type: string
  readonly status: number
  readonly waits_for: string | null
  readonly continues: boolean
  /** What the node, or each part of a map or loop, is: an approval or a child workflow. Null: it is itself such a part. */
  readonly inner: 'approval' | 'workflow' | null
  readonly role: TenantRole | null
  readonly definition: string | null
}

/** A run whose approvals are looked for. */
interface Inside {
  /** The top-level node that waits for it. Undefined: it is the run at hand. */
  readonly top: string | undefined
  /** The node that waits for it is over. */
  readonly isOver: boolean
}

/** How many runs are read with one query: each may have a hundred nodes that ask, and a map thousands of children. */
const runsAtOnce = 256

/**
 * The approvals of a run and of its child workflows. A child that has not begun, or whose run the node does not know yet, asks what its definition
 * says: nobody gets around an approval by being early.
 */
async function askingIn(tx: TenantTx, runId: string): Promise<Asking[]> {
  const found = new Map<string, Asking>()
  const unborn = new Map<string, Child>()
  const runs: [string, Inside][] = [[runId, { top: undefined, isOver: false }]]
  while (runs.length > 0) {
    const some = new Map(runs.splice(0, runsAtOnce))
    const rows = await rowsOf(tx, [...some.keys()])
    const statuses = new Map(rows.map(({ run_id, id, status }) => [`${run_id}/${id}`, status]))
    for (const row of rows) {
      if (row.status === skipped) continue
      const { top = topOf(row.id), isOver: isHolderOver } = some.get(row.run_id)!
      // A failed child workflow has cancelled what it had not asked.
      const isUnasked = row.status === cancelled && row.run_id !== runId
      // A part that failed holds up its map or loop until that is over.
      const holdsUp = row.inner === null ? statuses.get(`${row.run_id}/${topOf(row.id)}`)! < ok : !row.continues
      const isOver = isHolderOver || !(row.status < ok || isUnasked || (row.status === failed && holdsUp))
      if (row.inner === 'approval') {
        const role = row.role ?? 'member'
        found.set(`${top}/${role}/${isOver}`, { top, role, isOpen: !isOver })
      } else if (row.type === 'workflow' && row.waits_for !== null) runs.push([row.waits_for, { top, isOver }])
      else if (row.definition !== null && !isOver)
        unborn.set(`${top}/${row.definition}`, { top, definition: row.definition })
    }
  }
  return [...found.values(), ...(await askedBy(tx, [...unborn.values()]))]
}

/**
 * The nodes of these runs that are approvals or child workflows, or have such parts, and the parts that are child workflows. Specs stay in the
 * database: a run may have thousands of children, each with large ones.
 */
const rowsOf = (tx: TenantTx, runIds: readonly string[]): Promise<AskingRow[]> =>
  tx.query<AskingRow>({
    text: `WITH RECURSIVE node AS (
             SELECT run_id, id, type, status, waits_for, spec::json AS spec, coalesce(spec::json ->> 'continueOnError' = 'true', false) AS continues
             FROM workflow_nodes WHERE tenant_id = $1 AND run_id = ANY ($2) AND parent IS NULL AND (type IN ('approval', 'workflow')
               OR type IN ('map', 'loop') AND (spec LIKE '%"approval"%' OR spec LIKE '%"workflow"%'))
             UNION ALL
             SELECT run_id, id, type, status, waits_for, spec -> 'node', continues FROM node WHERE spec ->> 'type' IN ('map', 'loop')
           )
           SELECT run_id, id, type, status, waits_for, continues, spec ->> 'type' AS "inner", spec ->> 'role' AS role,
             spec ->> 'workflowDefinitionId' AS definition FROM node WHERE spec ->> 'type' IN ('approval', 'workflow')
           UNION ALL
           SELECT run_id, id, type, status, waits_for, false, NULL, NULL, NULL FROM workflow_nodes
           WHERE tenant_id = $1 AND run_id = ANY ($2) AND parent IS NOT NULL AND type = 'workflow'`,
    values: [tx.tenantId, runIds],
  })

/** A child workflow without a run, and the top-level node in which it is. */
interface Child {
  readonly top: string
  readonly definition: string
}

/** The approvals that child workflows would ask for, by their present definitions. */
async function askedBy(tx: TenantTx, children: readonly Child[]): Promise<Asking[]> {
  const found: Asking[] = []
  const seen = new Set<string>()
  for (let wanted = children; wanted.length > 0;) {
    const tops = Map.groupBy(wanted, ({ definition }) => definition)
    const next: Child[] = []
    for (const { id, role, child } of await rowsOfDefinitions(tx, [...tops.keys()])) {
      for (const { top } of tops.get(id)!) {
        if (child === null) found.push({ top, role: role ?? 'member', isOpen: true })
        else if (!seen.has(`${top}/${child}`)) next.push({ top, definition: child })
        seen.add(`${top}/${child}`)
      }
    }
    wanted = next
  }
  return found
}

/** One row per role that a definition asks, and per definition (`child`) of its child workflows. Definitions stay in the database: they may be large. */
const rowsOfDefinitions = (tx: TenantTx, ids: readonly string[]) =>
  tx.query<{ id: string; role: TenantRole | null; child: string | null }>({
    text: `WITH RECURSIVE node AS (
             SELECT d.id, json_array_elements(v.document::json -> 'nodes') AS spec FROM workflow_definitions d
             JOIN workflow_versions v ON v.tenant_id = d.tenant_id AND v.definition_id = d.id AND v.version = d.version
             WHERE d.tenant_id = $1 AND d.id = ANY ($2) AND (v.document LIKE '%"approval"%' OR v.document LIKE '%"workflow"%')
             UNION ALL
             SELECT id, spec -> 'node' FROM node WHERE spec ->> 'type' IN ('map', 'loop')
           )
           SELECT DISTINCT id, spec ->> 'role' AS role, spec ->> 'workflowDefinitionId' AS child FROM node
           WHERE spec ->> 'type' IN ('approval', 'workflow')`,
    values: [tx.tenantId, ids],
  })

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
