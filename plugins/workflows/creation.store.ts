import { randomUUID } from 'node:crypto'
import { setImmediate as turn } from 'node:timers/promises'
import type { Statement } from '#contracts/database'
import { newId } from '#contracts/ids'
import type { Wake } from '#contracts/jobs'
import { type LimitName, overLimit, type TenantLimits } from '#contracts/limits'
import type { WebhookTarget } from '#contracts/runs'
import type { FirstClaim } from './claims.store.ts'
import type { FoundDefinition } from './definitions.store.ts'
import type { WorkflowNode } from './node.schema.ts'
import { leaseMs, pending, ready, running } from './nodes.store.ts'
import { eventOf } from './notices.ts'
import type { Claimed } from './outcome.ts'
import { type Definition, type RunSettings, type RunStatus, runStatuses } from './schema.ts'

export interface NewRun {
  readonly id?: string
  readonly workflowDefinitionId?: string
  /** A checked definition, used instead of a stored one. */
  readonly definition?: Definition
  /** As JSON. */
  readonly input: string
  readonly start: boolean
  readonly createdBy: string
  readonly parent?: {
    readonly runId: string
    readonly rootId: string
    readonly nodeId: string
    readonly depth: number
    /** Cents that the agents of the run may cost, even if its definition allows more. */
    readonly budgetCents: number | undefined
  }
  readonly scheduleId?: string
  /** Replaces the webhook of the definition. */
  readonly webhook?: WebhookTarget
}

/** Bytes that a node takes besides its texts: its row with its index entries, and its edges. */
export const bytesOfNode = 400
/** To write out a run of so many bytes takes some milliseconds, after which others have their turns. */
export const longBytes = 512 * 1024

/** The runs without a parent that a new one counts itself to: the pending ones, or those that are running or paused. */
export type Peers = 'pending' | 'open'
/** Undefined for a child, which was counted with its run. */
export const peersOf = ({ start, parent }: NewRun): Peers | undefined =>
  parent ? undefined : start ? 'open' : 'pending'
/** How many of these a tenant may have. */
export const limitOf = { pending: 'pendingWorkflowRuns', open: 'workflowRuns' } as const satisfies Record<
  Peers,
  LimitName
>

/** The lock of a tenant for beginning runs. It makes concurrent requests count each other's runs, so that the limits on runs hold. */
export const lockOf = (tenantId: string, peers: Peers): Statement => ({
  name: 'workflow-lock',
  text: 'SELECT pg_advisory_xact_lock(hashtextextended($1, 58))',
  values: [peers === 'pending' ? `${tenantId} pending` : tenantId],
})
/**
 * Counts peers of a run of a status, 0 or 1, but no more than `most`: where a limit was lowered there may be far more. The order is the index's, so that
 * a plan from when the table was nearly empty takes no other index and reads all runs of the tenant.
 */
const counted = (status: string, most: string): string => `
  (SELECT count(*)::int FROM (SELECT FROM workflow_runs WHERE tenant_id = $1 AND depth = 0 AND status < 3
     AND status BETWEEN ${status}::int AND 2 * ${status}::int ORDER BY status LIMIT ${most}::int) peers)`
export const countOf = (tenantId: string, peers: Peers, most: number): Statement => ({
  name: 'workflow-peers',
  text: `SELECT ${counted('$2', '$3')} AS count`,
  values: [tenantId, peers === 'pending' ? 0 : 1, most],
})

/** Whether a node, or the inner node of a map or loop, has a concurrency key. */
export const isKeyed = (node: object): boolean =>
  'concurrencyKey' in node || ('node' in node && isKeyed(node.node as object))

export const wakeOf = (tenantId: string, runId: string): Wake => ({ tenantId, what: { tenantId, runId }, key: runId })
/** A wake-up that checks a run after the leases of its nodes expire, in case the process that executes them has died. */
export const guardOf = (tenantId: string, runId: string, afterMs: number): Wake => ({
  ...wakeOf(tenantId, runId),
  key: `${runId}/guard`,
  afterMs: afterMs + 500,
})

/** The first nodes of a new run, which the creating process executes at once. */
export interface Begun {
  readonly runId: string
  readonly rootId: string
  readonly depth: number
  readonly nodes: readonly WorkflowNode[]
  /** Id of the wake-up with which another process takes over if this one dies. Undefined: more nodes are ready than this process begins. */
  readonly guard: string | undefined
}

/** A run that is about to be stored. */
export interface Creation {
  readonly id: string
  readonly status: RunStatus
  /** Returns one row. No row: a run of this id exists, the tenant has as many runs as it may, or the definition has changed. */
  readonly insertion: Statement
  readonly wake: Wake | undefined
  readonly begun: Begun | undefined
  readonly bytes: number
  /** The lock under which the insertion counts. Undefined: there is no limit, or the run is a child of a run that was counted. */
  readonly lock: Statement | undefined
}

/** The nodes of a definition that depend on no others. */
export const firstOf = (nodes: readonly WorkflowNode[], edges: Edges): readonly WorkflowNode[] =>
  nodes.filter((node) => !edges.get(node.id)?.size)

interface CreationOptions {
  /** What each node of the definition depends on. */
  readonly edges: ReadonlyMap<string, ReadonlySet<string>>
  readonly limits: ReturnType<TenantLimits['of']> | undefined
  /** The process that executes the first nodes. Undefined: whichever process is woken. */
  readonly claim?: FirstClaim | undefined
  /** The definition comes from memory and may be outdated, so the insertion checks its version. */
  readonly isRecent?: boolean
}

export async function creationOf(
  tenantId: string,
  wanted: NewRun,
  found: FoundDefinition,
  options: CreationOptions,
): Promise<Creation> {
  const { edges, limits, claim, isRecent = false } = options
  const { nodes, name, webhook, ...own } = found.definition
  const { parent } = wanted
  const caps = [own.maxCostCents, parent?.budgetCents].filter((cap) => cap !== undefined)
  const settings: RunSettings = { ...own, ...(caps.length > 0 ? { maxCostCents: Math.min(...caps) } : {}) }
  if (limits && nodes.length > limits.workflowNodes) throw overLimit('workflowNodes', limits.workflowNodes)
  const peers = peersOf(wanted)
  const most = peers && limits?.[limitOf[peers]]
  const id = wanted.id ?? newId('wfrun')
  const status: RunStatus = wanted.start ? 'running' : 'pending'
  const keyed = nodes.some(isKeyed)
  const first = new Set(wanted.start ? firstOf(nodes, edges) : [])
  // Concurrency keys and budgets are divided among nodes at a claim, so the creating process begins no node of a run that has either.
  const begins = claim && !keyed && settings.maxCostCents === undefined
  const begun = begins ? [...first].sort((a, b) => (b.priority ?? 0) - (a.priority ?? 0)).slice(0, claim.most) : []
  const starting = new Set(begun)
  const written = await writtenOut(nodes, edges)
  const [asked, given] = [JSON.stringify(settings), wanted.input]
  const isAll = begun.length > 0 && begun.length === first.size
  const guard = isAll ? randomUUID() : undefined
  const values = [
    tenantId,
    id,
    found.id,
    found.version,
    name,
    asked,
    given,
    runStatuses.indexOf(status),
    nodes.length,
    parent?.depth ?? 0,
    parent?.runId,
    parent?.nodeId,
    parent?.rootId,
    wanted.scheduleId,
    wanted.createdBy,
    keyed,
    most,
    arrayOf(nodes.map((node) => node.id)),
    nodes.map(({ type }) => type),
    written.specs,
    nodes.map((node) => edges.get(node.id)?.size ?? 0),
    nodes.map(({ priority }) => priority ?? 0),
    nodes.map(({ concurrencyKey }) => concurrencyKey ?? null),
    written.before,
    written.after,
    (wanted.webhook ?? webhook)?.url,
    isRecent,
    nodes.map((node) => (starting.has(node) ? running : first.has(node) ? ready : pending)),
    claim?.owner,
    begun.length > 0
      ? eventOf(
          { id, status },
          begun.map((node) => [node.id, { status: running, attempt: 1 }]),
        )
      : null,
  ]
  return {
    id,
    status,
    insertion: { name: 'workflow-create', text: insertionText, values },
    wake: !wanted.start ? undefined : guard ? { ...guardOf(tenantId, id, leaseMs), id: guard } : wakeOf(tenantId, id),
    begun:
      begun.length > 0
        ? { runId: id, rootId: parent?.rootId ?? id, depth: parent?.depth ?? 0, nodes: begun, guard }
        : undefined,
    bytes: written.specs.length + bytesOfNode * nodes.length + asked.length + given.length,
    lock: peers && most !== undefined ? lockOf(tenantId, peers) : undefined,
  }
}

/** An array of ids as PostgreSQL reads it. No id has a character that means something there, and the driver would look at each of 40,000. */
const arrayOf = (ids: readonly string[]): string => (ids.length > 0 ? `{"${ids.join('","')}"}` : '{}')

type Edges = CreationOptions['edges']

interface WrittenOut {
  /** The nodes as one JSON array, in which nothing has to be escaped for the database: of megabytes, each character may be a quote. */
  readonly specs: string
  /** For each edge the node that must be over, and in the same order the node that waits for it. */
  readonly before: string
  readonly after: string
}

/** Writes nodes and edges out as the statement takes them. They are megabytes, so others have their turns in between. */
async function writtenOut(nodes: readonly WorkflowNode[], edges: Edges): Promise<WrittenOut> {
  const each: string[] = []
  let bytes = 0
  let paused = 0
  for (const node of nodes) {
    const spec = JSON.stringify(node)
    each.push(spec)
    bytes += spec.length + bytesOfNode
    if (bytes - paused <= longBytes) continue
    paused = bytes
    await turn()
  }
  const pause = bytes > longBytes ? turn : async () => {}
  await pause()
  const before = arrayOf([...edges.values()].flatMap((ids) => [...ids]))
  await pause()
  const after = arrayOf([...edges].flatMap(([to, { size }]) => Array<string>(size).fill(to)))
  await pause()
  return { specs: `[${each.join(',')}]`, before, after }
}

const insertionText = `
  WITH run AS (
    INSERT INTO workflow_runs (tenant_id, id, definition_id, definition_version, name, settings, input, status, unfinished, depth,
      parent_run, parent_node, root_run, schedule_id, created_by, keyed, started_at, webhook_url, seq)
    SELECT $1, $2, $3, $4::int, $5, $6, $7, $8::smallint, $9::int, $10::int, $11, $12, $13, $14, $15, $16::boolean,
      CASE WHEN $8::smallint = 1 THEN clock_timestamp() END,
      coalesce($26, (SELECT webhook_url FROM workflow_runs WHERE tenant_id = $1 AND id = $11)),
      CASE WHEN $30::text IS NULL THEN 0 ELSE 1 END
    WHERE ($17::int IS NULL OR $17::int > ${counted('$8', '$17')})
      AND (NOT $27::boolean OR EXISTS (SELECT FROM workflow_definitions WHERE tenant_id = $1 AND id = $3 AND version = $4::int))
    ON CONFLICT DO NOTHING RETURNING tenant_id, id
  ), nodes AS (
    INSERT INTO workflow_nodes (tenant_id, run_id, id, position, type, spec, waits, status, priority, concurrency_key,
      attempt, effect, lease_owner, lease_until, started_at)
    SELECT run.tenant_id, run.id, n.id, n.position, n.type, n.spec::text, n.waits, n.status, n.priority, n.key, begun::int, begun::int,
      CASE WHEN begun THEN $29 END, CASE WHEN begun THEN clock_timestamp() + interval '${leaseMs} milliseconds' END,
      CASE WHEN begun THEN clock_timestamp() END
    FROM run, ROWS FROM (unnest($18::text[], $19::text[], $21::int[], $22::int[], $23::text[], $28::smallint[]), json_array_elements($20::json))
      WITH ORDINALITY AS n (id, type, waits, priority, key, status, spec, position), LATERAL (SELECT n.status = ${running} AS begun) b
  ), edges AS (
    INSERT INTO workflow_edges (tenant_id, run_id, from_node, to_node)
    SELECT run.tenant_id, run.id, e.f, e.t FROM run, unnest($24::text[], $25::text[]) AS e (f, t)
  ), told AS (
    INSERT INTO workflow_events (tenant_id, run_id, seq, event) SELECT run.tenant_id, run.id, 1, $30 FROM run WHERE $30::text IS NOT NULL
  )
  SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now_ms FROM run`

/** The first attempts at the nodes that the creating process begins. */
export const claimsOf = ({ nodes }: Begun, nowMs: number): readonly Claimed[] =>
  nodes.map((spec) => ({
    id: spec.id,
    attempt: 1,
    effect: 1,
    spec,
    part: undefined,
    item: undefined,
    startedMs: nowMs,
    nowMs,
    budgetCents: undefined,
  }))
