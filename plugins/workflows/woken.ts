import type { FastifyBaseLogger } from 'fastify'
import { setImmediate as turn } from 'node:timers/promises'
import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import type { Wake, WakeUps } from '#contracts/jobs'
import type { TenantLimits } from '#contracts/limits'
import { isTerminal, type RunDispatch } from '#contracts/runs'
import type { RunStore } from '#contracts/run-store'
import { tenantIds } from '#kit'
import type { Engine } from './engine.ts'
import type { Evaluator } from './evaluator.ts'
import { agentFailure, bytesOf, type Failure, type Outcome, startedBy, tooLarge } from './outcome.ts'
import type { Outputs } from './outputs.ts'
import type { Waiting, WorkflowRunStore } from './runs.store.ts'
import { runStatuses } from './schema.ts'
import type { WorkflowService } from './service.ts'

/** How often a running agent run is checked again, in case the notification of its end is lost. */
const lookAgainMs = 60_000

export interface WokenDeps {
  readonly database: Database
  readonly store: WorkflowRunStore
  readonly engine: Engine
  readonly wakeUps: WakeUps
  readonly dispatch: RunDispatch
  readonly runs: RunStore
  readonly outputs: Outputs
  readonly evaluator: Evaluator
  readonly limits: TenantLimits | undefined
}

/** Handles the wake-ups of workflow runs: ended agent runs and child runs, due times, and started runs that no node waits for any more. */
export class Woken {
  readonly #deps: WokenDeps
  readonly #service: WorkflowService
  constructor(deps: WokenDeps, service: WorkflowService) {
    this.#deps = deps
    this.#service = service
  }

  /** Handles one wake-up. */
  async wake(what: Wake['what']): Promise<void> {
    const { tenantId, runId, leave, child, node, agent, offer } = what
    if (tenantId === undefined) return
    if (agent !== undefined) return this.#lookAtAgent(tenantId, agent)
    if (runId === undefined) return
    if (leave !== undefined) return this.#leave(tenantId, runId, leave, what['type'])
    if (offer !== undefined) return this.#deps.engine.offered(tenantId, runId)
    if (child !== undefined && node !== undefined) await this.#childOver(tenantId, runId, child)
    else await this.#deps.engine.drive(tenantId, runId)
  }

  /** Ends the node that waits for an agent run if that run has ended. Otherwise the run is checked again after `lookAgainMs`. */
  async #lookAtAgent(tenantId: string, agentRunId: string): Promise<void> {
    const node = await this.#deps.store.waiting(tenantId, agentRunId)
    if (!node) return
    const run = await this.#deps.runs.findRun(tenantId, agentRunId)
    if (run && !isTerminal(run.status)) {
      if (await this.#hasWaited(tenantId, agentRunId)) {
        await this.#deps.engine.transit(tenantId, node.run_id, ({ waits }) => waits.retime(node.id))
      }
      const again = { tenantId, what: { tenantId, agent: agentRunId }, key: `${agentRunId}/look`, afterMs: lookAgainMs }
      return this.#deps.wakeUps.send([again])
    }
    // The cost includes that of the runs to which the agent has delegated.
    const delegated = await this.#deps.runs.delegatedCents(tenantId, agentRunId)
    const own = run?.costCents ?? run?.usage?.knownCostCents ?? 0
    const costCents = delegated.values().reduce((sum, cents) => sum + cents, own)
    const of = { node: node.id, attempt: node.attempt, kind: 'over', costCents } as const
    const outcome: Outcome =
      run?.status === 'ok'
        ? { ...of, ...(await this.#answerOf(tenantId, node, run.result ?? '')) }
        : { ...of, status: 'error', error: agentFailure(run) }
    await this.#settle(tenantId, node.run_id, outcome)
  }

  /** The output of an agent node: the answer as a JSON string, or the JSON value in it when the node has a `responseFormat`. */
  async #answerOf(tenantId: string, { run_id: runId, spec }: Waiting, result: string) {
    const structured = spec.type === 'agent' && spec.responseFormat !== undefined
    // The runtime has checked that the answer is JSON. If it is not after all, the output is the text of the answer.
    const json = await this.#deps.evaluator.json(tenantId, result, structured)
    if (json === undefined) return { status: 'error', error: tooLarge } as const
    return this.#deps.outputs.take({ tenantId, runId }, spec, json)
  }

  async #childOver(tenantId: string, runId: string, childId: string): Promise<void> {
    const node = await this.#deps.store.waiting(tenantId, childId)
    if (!node || node.run_id !== runId) return
    const child = await this.#deps.store.statusOf(tenantId, childId)
    if (runStatuses.indexOf(child.status) < 3) return
    const costCents = await this.#cost(tenantId, childId)
    const of = { node: node.id, attempt: node.attempt, kind: 'over', costCents } as const
    const why = child.error === null ? undefined : (JSON.parse(child.error) as Failure)
    const outcome: Outcome =
      child.status === 'completed'
        ? {
            ...of,
            ...(await this.#deps.outputs.ofChild({ tenantId, runId }, node.spec, childId, child.output ?? 'null')),
          }
        : {
            ...of,
            status: 'error',
            error: {
              code: `workflow_${child.status}`,
              message: why?.message ?? `The child workflow ended as ${child.status}.`,
              workflowRunId: childId,
            },
          }
    await this.#settle(tenantId, runId, outcome)
  }
  /** What the agents of a run have cost, in cents. */
  async #cost(tenantId: string, runId: string): Promise<number> {
    const [[row]] = await this.#deps.database.batch<[{ cost: number }[]]>(tenantId, [
      {
        text: 'SELECT coalesce(sum(cost_cents), 0)::float8 AS cost FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2',
        values: [tenantId, runId],
      },
    ])
    return row!.cost
  }
  /** Whether an agent run waits for people, or has waited for them. */
  async #hasWaited(tenantId: string, agentRunId: string): Promise<boolean> {
    const [rows] = await this.#deps.database.batch<[object[]]>(tenantId, [
      {
        name: 'workflow-agent-waited',
        text: 'SELECT 1 FROM runs WHERE tenant_id = $1 AND id = $2 AND waited_ms IS NOT NULL',
        values: [tenantId, agentRunId],
      },
    ])
    return rows.length > 0
  }
  async #settle(tenantId: string, runId: string, outcome: Outcome): Promise<void> {
    await this.#deps.engine.transit(tenantId, runId, async () => {}, { outcomes: [outcome] })
    this.#deps.limits?.stored.add(tenantId, bytesOf(outcome))
    await this.#deps.engine.drive(tenantId, runId)
  }

  /** Cancels the run that a node no longer waits for. Without `type`: cancels all runs that the nodes of a cancelled run started. */
  async #leave(tenantId: string, runId: string, what: string, type: string | undefined): Promise<void> {
    if (type !== undefined) return this.#cancelThing(tenantId, what, type)
    type Row = { id: string; attempt: number; waits_for: string | null; type: string }
    const [rows] = await this.#deps.database.batch<[Row[]]>(tenantId, [
      {
        text: `SELECT id, attempt, waits_for, type FROM workflow_nodes
               WHERE tenant_id = $1 AND run_id = $2 AND status = 6 AND attempt > 0 AND type IN ('agent', 'workflow')`,
        values: [tenantId, runId],
      },
    ])
    // A node that was not waiting yet may have started its run already. The id of that run follows from the attempt.
    for (const { id, attempt, waits_for, type: one } of rows)
      await this.#cancelThing(tenantId, waits_for ?? startedBy(runId, id, attempt), one)
  }
  async #cancelThing(tenantId: string, id: string, type: string): Promise<void> {
    try {
      if (type === 'workflow') await this.#service.cancel(tenantId, id)
      else await this.#deps.dispatch.cancel(tenantId, id)
    } catch (error) {
      // 404: the run was never started, so there is nothing to cancel.
      if (!isAppError(error) || error.status !== 404) throw error
    }
  }
}

/** How many runs and schedules of a tenant one sweep wakes. Runs are picked at random, so the next sweep gets others. */
const atOnce = 1_000

/**
 * Wakes runs that have not moved for a while although something of them is due, and schedules whose time has passed. Runs that only wait are skipped,
 * since thousands of them would hide the one that hangs. No wake-up gets lost in normal operation; this is for tables that were restored from a
 * backup, or emptied by hand.
 */
export async function sweep(
  { database, wakeUps, log }: { database: Database; wakeUps: WakeUps; log: Pick<FastifyBaseLogger, 'warn'> },
  signal: AbortSignal,
): Promise<void> {
  for await (const tenantId of tenantIds(database, 'active')) {
    if (signal.aborted) return
    // A tenant with so many waiting nodes that they are not read in time keeps nobody else's runs waiting. The next sweep is due in minutes.
    await sweepTenant(database, wakeUps, tenantId).catch((err: unknown) =>
      log.warn({ err, tenant: tenantId }, 'the workflow runs of a tenant could not be swept'),
    )
    await turn()
  }
}

async function sweepTenant(database: Database, wakeUps: WakeUps, tenantId: string): Promise<void> {
  type Over = { id: string; run_id: string; node: string; type: string }
  const [runs, over, schedules] = await database.batch<[{ id: string }[], Over[], { id: string }[]]>(tenantId, [
    {
      text: `SELECT id FROM workflow_runs r WHERE tenant_id = $1 AND status = 1 AND moved_at < now() - interval '10 minutes'
                 AND (unfinished = 0 OR EXISTS (SELECT FROM workflow_nodes n WHERE n.tenant_id = $1 AND n.run_id = r.id
                   AND (n.status = 1 AND coalesce(n.due_at, '-infinity') < now() OR n.status = 2 AND least(n.due_at, n.lease_until) < now())))
               ORDER BY random() LIMIT ${atOnce}`,
      values: [tenantId],
    },
    {
      text: `SELECT n.waits_for AS id, n.run_id, n.id AS node, n.type FROM workflow_nodes n
                 LEFT JOIN runs a ON n.type = 'agent' AND a.tenant_id = $1 AND a.id = n.waits_for
                 LEFT JOIN workflow_runs c ON n.type = 'workflow' AND c.tenant_id = $1 AND c.id = n.waits_for
                 WHERE n.tenant_id = $1 AND n.waits_for IS NOT NULL AND n.status = 2 AND n.type IN ('agent', 'workflow')
                 AND n.started_at < now() - interval '10 minutes'
                 AND (n.type = 'agent' AND (a.id IS NULL OR a.finished_at IS NOT NULL) OR c.status > 2) ORDER BY random() LIMIT ${atOnce}`,
      values: [tenantId],
    },
    {
      text: `SELECT id FROM workflow_schedules WHERE tenant_id = $1 AND status = 'active' AND next_at < now() - interval '2 minutes'
               LIMIT ${atOnce}`,
      values: [tenantId],
    },
  ])
  const wakes: Wake[] = [
    ...runs.map(({ id }) => ({ tenantId, what: { tenantId, runId: id }, key: id })),
    ...over.map(({ id, run_id: runId, node, type }) => ({
      tenantId,
      what: type === 'agent' ? { tenantId, agent: id } : { tenantId, runId, node, child: id },
      key: `${id}/sweep`,
    })),
    ...schedules.map(({ id }) => ({ tenantId, what: { tenantId, scheduleId: id }, key: `${id}/sweep` })),
  ]
  await wakeUps.send(wakes)
}
