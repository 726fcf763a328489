import type { Database } from '#contracts/database'
import type { PublicRun } from './runs.store.ts'

const expire = {
  name: 'gateway-expire',
  text: `UPDATE instances SET dead = true WHERE kind = 'gateway' AND NOT dead AND lease_until < now()`,
}
const dead = {
  name: 'gateway-dead',
  text: `SELECT id, lease_until < now() - interval '1 minute' AS forgotten FROM instances WHERE kind = 'gateway' AND dead`,
}

export interface DeadGateway {
  readonly id: string
  /** So long ago that nothing it sent to the database can still be under way. */
  readonly forgotten: boolean
}

/** Gateways whose lease ran out or that stopped with open runs. Live ones are never touched. */
export async function deadGateways(database: Database): Promise<DeadGateway[]> {
  const [, rows] = await database.systemBatch<[object[], DeadGateway[]]>([expire, dead])
  return rows
}

export const forgetGateways = (database: Database, ids: readonly string[]): Promise<unknown> =>
  database.systemBatch([{ name: 'gateway-forget', text: `DELETE FROM instances WHERE id = ANY($1)`, values: [ids] }])

const everyTenant = { name: 'chat-tenants', text: `SELECT id FROM tenants ORDER BY id` }

export async function tenantIds(database: Database): Promise<string[]> {
  const [rows] = await database.systemBatch<[{ id: string }[]]>([everyTenant])
  return rows.map(({ id }) => id)
}

/** Runs that one statement takes over, so that a large backlog neither blocks nor floods the conductor. */
export const takeOverLimit = 200

const takeOver = {
  name: 'chat-take-over',
  text: `WITH orphan AS (
           SELECT id FROM public_runs
           WHERE tenant_id = $1 AND status IN ('dispatching', 'running') AND (
             (owner_instance = $2 AND id <> ALL ($3::text[])) OR
             (owner_instance <> $2 AND NOT EXISTS (
               SELECT FROM instances WHERE instances.id = public_runs.owner_instance AND NOT instances.dead)))
           ORDER BY id LIMIT ${takeOverLimit} FOR UPDATE SKIP LOCKED)
         UPDATE public_runs run SET owner_instance = $2 FROM orphan WHERE run.tenant_id = $1 AND run.id = orphan.id
         RETURNING run.id, run.published_id, run.conversation_id, run.run_id, coalesce((
           SELECT expose_tool_events FROM published_agents agent
           WHERE agent.tenant_id = $1 AND agent.id = run.published_id), false) AS expose_tool_events`,
}

interface OrphanRow {
  id: string
  published_id: string
  conversation_id: string
  run_id: string
  expose_tool_events: boolean
}

export interface Orphan extends PublicRun {
  readonly exposeToolEvents: boolean
}

/**
 * Claims open runs of one tenant whose owner is not alive. `known`: after a write whose answer was lost, also those of
 * `owner` itself that are not among these.
 */
export async function takeOverOrphans(
  database: Database,
  tenantId: string,
  owner: string,
  known: readonly string[] | undefined,
): Promise<Orphan[]> {
  const [rows] = await database.batch<[OrphanRow[]]>(tenantId, [
    { ...takeOver, values: [tenantId, owner, known ?? null] },
  ])
  return rows.map((row) => ({
    tenantId,
    publicRunId: row.id,
    publishedId: row.published_id,
    conversationId: row.conversation_id,
    runId: row.run_id,
    exposeToolEvents: row.expose_tool_events,
  }))
}
