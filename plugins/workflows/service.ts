import { conflict, forbidden, invalidField } from '#kernel'
import { approvalErrors, type NodeApproval, type NodeDecision } from '#contracts/approvals'
import { type Caller, roleAtLeast, type TenantRole } from '#contracts/auth'
import type { Database, TenantTx } from '#contracts/database'
import { newId } from '#contracts/ids'
import type { WakeUps } from '#contracts/jobs'
import type { TenantLimits } from '#contracts/limits'
import { webhookErrors, type Webhooks } from '#contracts/webhooks'
import { mayPass } from './passing.store.ts'
import { addDependencies, copyRun, mayDecide, nodeOf, replaceNode, retryNode } from './repairs.store.ts'
import { findDefinition, replaceDefinition, unknownDefinition } from './definitions.store.ts'
import type { Engine } from './engine.ts'
import { branchesOf } from './graph.ts'
import type { Outputs, RunKey } from './outputs.ts'
import { invalidWorkflow, workflowErrors } from './errors.ts'
import { wakeOf } from './creation.store.ts'
import type { WorkflowRunStore } from './runs.store.ts'
import { unknownRun } from './views.store.ts'
import {
  type CreateRun,
  type DefinitionBody,
  type DefinitionInfo,
  type NodeBody,
  type NodeUpdate,
  type Repair,
  type RunStatus,
} from './schema.ts'
import { approvalOutcome, bytesOfEvent, type Failure, hasTooManyParts, mostParts, type Outcome } from './outcome.ts'
import type { Transition } from './transition.ts'
import { checkedDefinition, type Lookups, nodeProblems, problemsOf, sendsSecrets } from './validate.ts'

/** The most characters of an error that a client gives a node. */
const mostFailure = 20_000
/** The most characters of one that a tenant whose store is full may give. */
const shortFailure = 500
/** The most characters of a definition. */
const longestDefinition = 8 * 1024 * 1024
/** So often a change of a definition is made anew because another one came first. */
const mostChanges = 5

export interface ServiceDeps {
  readonly database: Database
  readonly store: WorkflowRunStore
  readonly engine: Engine
  readonly wakeUps: WakeUps
  readonly webhooks: Webhooks | undefined
  readonly outputs: Outputs
  readonly limits: TenantLimits | undefined
  lookups(tenantId: string): Lookups
}

/** The requests that clients make on workflow runs: create, start, cancel, signal, decide, repair and rerun. */
export class WorkflowService {
  readonly #deps: ServiceDeps
  constructor(deps: ServiceDeps) {
    this.#deps = deps
  }

  /** Checks a body and returns it as a definition. 400 `invalid_workflow` names every problem of the body. */
  async check(tenantId: string, body: DefinitionBody, at = ''): Promise<ReturnType<typeof checkedDefinition>> {
    const problems = await problemsOf(body, this.#deps.lookups(tenantId))
    if (problems.length > 0) throw invalidWorkflow(problems, at)
    this.#checkWebhook(tenantId, body.webhook)
    return checkedDefinition(body)
  }

  #checkWebhook(tenantId: string, webhook: CreateRun['webhook']): void {
    if (!webhook) return
    if (!this.#deps.webhooks) throw webhookErrors.webhooksUnavailable()
    this.#deps.webhooks.check(tenantId, webhook.url)
  }

  async create(
    { tenantId, keyId, role }: Caller,
    { workflowDefinitionId, definition, input, autoStart = true, webhook }: CreateRun,
  ) {
    if ((workflowDefinitionId === undefined) === (definition === undefined)) {
      throw invalidField('body', 'needs `workflowDefinitionId` or `definition`, and not both')
    }
    const checked = definition && (await this.check(tenantId, definition, 'definition'))
    if (definition) mayWrite(role, definition.nodes)
    this.#checkWebhook(tenantId, webhook)
    return this.#deps.store.create(tenantId, {
      ...(workflowDefinitionId === undefined ? {} : { workflowDefinitionId }),
      ...(checked ? { definition: checked } : {}),
      input: JSON.stringify(input ?? {}),
      start: autoStart,
      createdBy: keyId,
      ...(webhook ? { webhook } : {}),
    })
  }

  /** Idempotent: a started run stays unchanged. */
  async start(tenantId: string, runId: string): Promise<RunStatus> {
    const { status } = await this.#deps.store.statusOf(tenantId, runId)
    if (status === 'pending') await this.#deps.store.admit(tenantId)
    return this.#change(tenantId, runId, async (transition, tx) => {
      if (transition.run.status !== 'pending') return transition.run.status
      await this.#deps.store.admitIn(tx)
      transition.run.status = 'running'
      await tx.query({
        text: `UPDATE workflow_nodes SET status = 1 WHERE tenant_id = $1 AND run_id = $2 AND status = 0 AND waits = 0 AND parent IS NULL`,
        values: [tenantId, runId],
      })
      transition.notices.wake()
      return 'running'
    })
  }

  /** Idempotent. Also aborts the calls of the run, and cancels the agents and child workflows that it started. */
  async cancel(tenantId: string, runId: string): Promise<RunStatus> {
    const status = await this.#change(tenantId, runId, async (transition) => {
      if (transition.open || transition.run.status === 'pending') await transition.endRun('cancelled')
      return transition.run.status
    })
    this.#deps.engine.leave(tenantId, runId)
    return status
  }

  /**
   * Ends a node with the status that a client gives. 409 `node_over` when the node has ended already, 403 `wrong_approver` when only a higher role
   * may decide.
   */
  async update(caller: Caller, runId: string, nodeId: string, { status, output, error }: NodeUpdate): Promise<void> {
    const failure: Failure | undefined =
      typeof error === 'string' ? { code: 'failed', message: error } : (error as Failure | undefined)
    // Lists, events and snapshots repeat it.
    const told = failure ? JSON.stringify(failure).length : 0
    if (told > mostFailure) throw invalidField('body/error', `has at most ${mostFailure} characters as JSON`)
    // A full tenant may end its nodes, with a failure of a line.
    if (told > shortFailure) this.#deps.limits?.stored.admit(caller.tenantId)
    const kept = output === undefined ? undefined : await this.#given({ tenantId: caller.tenantId, runId }, output)
    await this.#change(caller.tenantId, runId, async (transition, tx) => {
      if (!transition.open) throw workflowErrors.runOver()
      const node = await nodeOf(tx, runId, nodeId)
      mayDecide(caller, node)
      if (node.status === 4 ? status === 'error' || !node.blocks : node.status > 2) {
        throw workflowErrors.nodeOver({ message: 'The node is over already.' })
      }
      const passing = status === 'ok' || status === 'error' ? 'end' : 'skip'
      await mayPass(tx, caller, { runId, nodeIds: [nodeId], passing })
      await transition.endNodes([nodeId], status, {
        ...(kept === undefined ? {} : { output: kept }),
        ...(failure ? { error: failure } : {}),
      })
      transition.notices.wake()
    })
    this.#deps.limits?.stored.add(caller.tenantId, bytesOfEvent + 2 * told + (kept?.length ?? 0))
  }

  /**
   * Delivers a signal to the nodes that wait for it. When no node waits, the signal is kept for later waits, in order of arrival; a run keeps at most
   * 100.
   */
  async signal(tenantId: string, runId: string, name: string, payload: unknown): Promise<void> {
    const text = await this.#given({ tenantId, runId }, payload ?? null)
    await this.#change(tenantId, runId, async (transition, tx) => {
      if (!transition.open && transition.run.status !== 'pending') throw workflowErrors.runOver()
      const waiting = await tx.query<{ id: string; attempt: number }>({
        text: 'SELECT id, attempt FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND waits_for = $3 AND status = 2',
        values: [tenantId, runId, `signal/${runId}/${name}`],
      })
      await transition.apply(
        waiting.map(({ id, attempt }): Outcome => ({ node: id, attempt, kind: 'over', status: 'ok', output: text })),
      )
      transition.notices.wake()
      if (waiting.length > 0) return
      const [count] = await tx.query<{ count: number }>({
        text: 'SELECT coalesce(sum(1 + cardinality(later)), 0)::int AS count FROM workflow_signals WHERE tenant_id = $1 AND run_id = $2',
        values: [tenantId, runId],
      })
      if (count!.count >= 100)
        throw workflowErrors.nodeOver({ message: 'A hundred signals wait for this run already.' })
      // What a run waits for it gets, so that runs of a tenant whose store is full can end. What nobody waits for is refused then.
      this.#deps.limits?.stored.admit(tenantId)
      await tx.query({
        text: `INSERT INTO workflow_signals (tenant_id, run_id, name, payload) VALUES ($1, $2, $3, $4)
               ON CONFLICT (tenant_id, run_id, name) DO UPDATE SET later = workflow_signals.later || excluded.payload`,
        values: [tenantId, runId, name, text],
      })
    })
    this.#deps.limits?.stored.add(tenantId, bytesOfEvent + text.length)
  }

  /** Converts an output that a client sent to its stored form: JSON, or a link to the object store. */
  async #given(key: RunKey, value: unknown): Promise<string> {
    const json = JSON.stringify(value)
    if (json.length > this.#deps.outputs.above) {
      // Only large outputs are checked against the storage limit: a tenant whose store is full may still send small ones.
      this.#deps.limits?.stored.admit(key.tenantId)
      // Rejects with 404 before anything is written to the object store for a run that does not exist.
      await this.#deps.store.statusOf(key.tenantId, key.runId)
    }
    return this.#deps.outputs.keep(key, json)
  }

  /** Decides an approval and ends its node. 409 `already_resolved` for every decision after the first. */
  async resolve(
    { tenantId, keyId }: Caller,
    approval: NodeApproval,
    { approved, comment }: NodeDecision,
  ): Promise<void> {
    const found = await this.#deps.store.waiting(tenantId, approval.id)
    if (!found) throw approvalErrors.alreadyResolved()
    await this.#change(tenantId, approval.workflowRunId, async (transition, tx) => {
      const rows = await tx.query({
        text: `UPDATE approvals SET status = $3, comment = $4, resolved_by = $5, resolved_at = now()
               WHERE tenant_id = $1 AND id = $2 AND status = 'waiting' AND (expires_at IS NULL OR expires_at > now()) RETURNING 1`,
        values: [tenantId, approval.id, approved ? 'approved' : 'rejected', comment ?? null, keyId],
      })
      if (rows.length === 0 || !transition.open) throw approvalErrors.alreadyResolved()
      const outcome = approvalOutcome(approved, { by: keyId, ...(comment === undefined ? {} : { comment }) })
      await transition.apply([{ node: found.id, attempt: found.attempt, ...outcome }])
      transition.notices.wake()
    })
  }

  /** Repairs a paused run: retries or replaces a node, adds a dependency, or aborts the run. 409 `not_paused` for any other run. */
  async repair(caller: Caller, runId: string, { action, nodeId, node, dependsOn }: Repair): Promise<void> {
    const { tenantId } = caller
    if (action !== 'abort' && nodeId === undefined) throw invalidField('body/nodeId', 'is needed')
    if (action === 'replace_node' && !node) throw invalidField('body/node', 'is needed')
    if (action === 'add_dependency' && dependsOn === undefined) throw invalidField('body/dependsOn', 'is needed')
    if (node) {
      const problems = await nodeProblems({ ...node, id: nodeId }, this.#deps.lookups(tenantId))
      if (problems.length > 0) throw invalidWorkflow(problems)
      mayWrite(caller.role, [node as NodeBody])
    }
    // A full tenant may end what it has, and brings nothing more: a node that is tried again writes events each time.
    if (action !== 'abort') this.#deps.limits?.stored.admit(tenantId)
    await this.#change(tenantId, runId, async (transition, tx) => {
      if (transition.run.status !== 'paused') throw workflowErrors.notPaused()
      if (action === 'abort') return transition.endRun('failed', { code: 'aborted', message: 'The run was given up.' })
      const found = await nodeOf(tx, runId, nodeId!)
      if (action === 'retry_node') {
        if (!found.blocks)
          throw workflowErrors.nodeOver({ message: 'Only a failed node that holds its run up is tried again.' })
        await retryNode(tx, runId, nodeId!)
        transition.notices.tell(nodeId!, 1, 0)
        transition.run.failed--
      } else if (action === 'replace_node') {
        mayDecide(caller, found)
        await mayPass(tx, caller, { runId, nodeIds: [nodeId!], passing: 'replace' })
        // New dependencies or branches of the replaced node may cause an approval to be skipped, so they need the same permission.
        const moved = [...(node!.dependsOn ? [nodeId!] : []), ...branchesOf(node!)]
        await mayPass(tx, caller, { runId, nodeIds: moved, passing: 'skip' })
        if (found.status > 1 && !found.blocks)
          throw workflowErrors.nodeOver({ message: 'The node runs, or is over already.' })
        await replaceNode(tx, runId, nodeId!, { ...node!, id: nodeId } as NodeBody)
        if (found.blocks) {
          await retryNode(tx, runId, nodeId!)
          transition.notices.tell(nodeId!, 1, 0)
          transition.run.failed--
        }
      } else {
        if (found.parent !== null || (found.status > 1 && !found.blocks)) {
          throw workflowErrors.nodeOver({ message: 'The node runs, is over already, or is a part of another one.' })
        }
        await mayPass(tx, caller, { runId, nodeIds: [nodeId!], passing: 'skip' })
        await addDependencies(tx, runId, new Map([[nodeId!, [dependsOn!].flat()]]))
      }
      transition.notices.wake()
    })
    // What it replaced is taken off by the nightly count.
    const brought = action === 'replace_node' ? JSON.stringify(node).length : 0
    this.#deps.limits?.stored.add(tenantId, bytesOfEvent + brought)
    if (action === 'abort') this.#deps.engine.leave(tenantId, runId)
  }

  /** Creates a new run of the same nodes: `fromNodeId` and the nodes after it run again, and all other nodes keep their results. */
  async rerun(caller: Caller, runId: string, fromNodeId: string): Promise<{ id: string; status: RunStatus }> {
    const { tenantId, keyId } = caller
    const id = newId('wfrun')
    await this.#deps.store.admit(tenantId)
    const copied = await this.#deps.database.tenant(tenantId, async (tx) => {
      const [run] = await tx.query<{ status: number }>({
        text: 'SELECT status FROM workflow_runs WHERE tenant_id = $1 AND id = $2 FOR SHARE',
        values: [tenantId, runId],
      })
      if (!run) throw unknownRun()
      if (run.status < 2)
        throw workflowErrors.nodeOver({ message: 'The run is under way: cancel it first, or wait until it rests.' })
      const from = await nodeOf(tx, runId, fromNodeId)
      if (from.parent !== null)
        throw workflowErrors.nodeOver({ message: 'A run begins again from a node, not from a part of one.' })
      await mayPass(tx, caller, { runId, nodeIds: [fromNodeId], passing: 'rerun' })
      await this.#deps.store.admitIn(tx)
      const bytes = await copyRun(tx, runId, id, fromNodeId, keyId)
      await this.#deps.outputs.lendAll(tx, runId, id)
      await this.#deps.wakeUps.send([wakeOf(tenantId, id)], tx)
      return bytes
    })
    this.#deps.limits?.stored.add(tenantId, copied)
    return { id, status: 'running' }
  }

  async #change<T>(
    tenantId: string,
    runId: string,
    change: (transition: Transition, tx: TenantTx) => Promise<T>,
  ): Promise<T> {
    const made = await this.#deps.engine.transit(tenantId, runId, async (...both) => ({
      result: await change(...both),
    }))
    if (!made) throw unknownRun()
    return made.result
  }

  /**
   * Checks a stored definition with some of its fields replaced, and stores it as the next version. What changes nothing makes no version. 404 when
   * the id is unknown.
   */
  async change(
    { tenantId, keyId }: Pick<Caller, 'tenantId' | 'keyId'>,
    id: string,
    change: Partial<DefinitionBody>,
  ): Promise<DefinitionInfo> {
    const { database, limits } = this.#deps
    // Somebody else may change the definition meanwhile. Then this is a change of what they made of it.
    for (let left = mostChanges; left > 0; left--) {
      const found = await findDefinition(database, tenantId, id)
      if (!found) throw unknownDefinition()
      const next = await this.check(tenantId, { ...(found.definition as unknown as DefinitionBody), ...change })
      const document = JSON.stringify(next)
      if (document === found.document) return found.info
      // A change brings some of its fields, and all of it is parsed in one step.
      if (document.length > longestDefinition || hasTooManyParts(document))
        throw invalidField(
          'body',
          `makes a definition of more than 8 MiB, or of more than ${mostParts} values and names`,
        )
      limits?.stored.admit(tenantId)
      const made = await replaceDefinition(database, tenantId, found, { definition: next, document, createdBy: keyId })
      if (!made) continue
      // Old versions are kept as well, so a change adds its full size.
      limits?.stored.add(tenantId, document.length)
      return made
    }
    throw conflict({ message: 'Others change this definition at the same time: try again.', retryable: true })
  }
}

/** Members may run nodes that admins wrote, but may not write nodes that send a secret: they could send it anywhere. Rejects with 403. */
function mayWrite(role: TenantRole, nodes: readonly NodeBody[]): void {
  if (!roleAtLeast(role, 'admin') && nodes.some(sendsSecrets))
    throw forbidden({
      message: 'Only admins may write nodes that send secrets: run a stored definition that has them.',
    })
}
