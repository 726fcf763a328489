import { approvalErrors } from '#contracts/approvals'
import { type Caller, roleAtLeast, type TenantRole } from '#contracts/auth'
import type { TenantTx } from '#contracts/database'
import { failed, ok, running, skipped } from './nodes.store.ts'
import { roleOf, type WorkflowNode } from './node.schema.ts'

/** An action on a node that could bypass an approval which the caller may not decide. */
export type Passing = 'end' | 'skip' | 'replace' | 'rerun'

interface Asking {
  /** The top-level node of this run that contains the approval: the approval itself, a map or loop, or a running child workflow. */
  readonly top: string
  readonly status: number
  readonly spec: WorkflowNode
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
  if (nodeIds.length === 0) return
  const counts = passing === 'end' || passing === 'skip' ? isOpen : passing === 'rerun' ? isDecided : () => true
  const above = (await askingIn(tx, runId)).filter((one) => counts(one) && !roleAtLeast(role, roleOf(one.spec)))
  if (above.length === 0) return
  const edges = await tx.query<{ from_node: string; to_node: string }>({
    text: 'SELECT from_node, to_node FROM workflow_edges WHERE tenant_id = $1 AND run_id = $2',
    values: [tx.tenantId, runId],
  })
  const near = reached(
    nodeIds.map((id) => id.split('.', 1)[0]!),
    Map.groupBy(edges, ({ to_node }) => to_node),
    'from_node',
  )
  // A rerun from the approval itself asks again.
  if (passing === 'rerun') for (const id of nodeIds) near.delete(id)
  if (passing === 'skip') {
    for (const id of reached(
      nodeIds,
      Map.groupBy(edges, ({ from_node }) => from_node),
      'to_node',
    ))
      near.add(id)
  }
  const found = above.find(({ top }) => near.has(top))
  if (found) throw refusal(found.top, roleOf(found.spec), passing)
}

/** The approval is undecided, or it was rejected and holds its run up. */
const isOpen = ({ status, spec }: Asking): boolean => status < ok || (status === failed && !spec.continueOnError)
/** The approval was decided and its result is kept. */
const isDecided = (one: Asking): boolean => !isOpen(one) && one.status !== skipped

/** The approvals of a run, including those of its running child workflows. */
async function askingIn(tx: TenantTx, runId: string): Promise<Asking[]> {
  const rows = await tx.query<{ top: string; status: number; spec: string }>({
    text: `WITH RECURSIVE held AS (
             SELECT split_part(id, '.', 1) AS top, type, status, spec, waits_for FROM workflow_nodes
             WHERE tenant_id = $1 AND run_id = $2
               AND (parent IS NULL AND type IN ('approval', 'map', 'loop') OR type = 'workflow' AND status = ${running})
             UNION ALL
             SELECT h.top, n.type, n.status, n.spec, n.waits_for FROM held h JOIN workflow_nodes n ON n.tenant_id = $1 AND n.run_id = h.waits_for
             WHERE h.type = 'workflow'
               AND (n.parent IS NULL AND n.type IN ('approval', 'map', 'loop') OR n.type = 'workflow' AND n.status = ${running})
           )
           SELECT top, status, spec FROM held WHERE type <> 'workflow' AND spec LIKE '%"approval"%'`,
    values: [tx.tenantId, runId],
  })
  return rows.map(({ spec, ...row }) => ({ ...row, spec: JSON.parse(spec) as WorkflowNode }))
}

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

function refusal(approval: string, role: TenantRole, passing: Passing) {
  const told = {
    end: 'This node would bypass it',
    skip: 'Skipping this node, or making it wait for others, could bypass it',
    replace: 'A node after it cannot be replaced without their decision',
    rerun: `A rerun would repeat what was approved once: begin it from '${approval}', so that it is asked again`,
  }[passing]
  return approvalErrors.wrongApprover({
    message: `Only keys of the role ${role} or above may decide the approval '${approval}'. ${told}.`,
  })
}
