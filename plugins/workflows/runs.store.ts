import { isAppError, notFound } from '#kernel'
import type { Billing } from '#contracts/billing'
import type { Database, Statement, TenantTx } from '#contracts/database'
import type { WakeUps } from '#contracts/jobs'
import { newId } from '#contracts/ids'
import { overLimit, type TenantLimits } from '#contracts/limits'
import type { WebhookTarget } from '#contracts/runs'
import type { OutputSchemas } from '#kit/schemas'
import { findDefinition } from './definitions.store.ts'
import { workflowErrors } from './errors.ts'
import { partOf, type WorkflowNode } from './node.schema.ts'
import { type Definition, type RunSettings, type RunStatus, runStatuses } from './schema.ts'
import { edgesOf } from './validate.ts'
import { unknownRun } from './views.store.ts'

export interface NewRun {
  readonly id?: string
  readonly workflowDefinitionId?: string
  /** Instead of a stored one. It was checked. */
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
    /** What its agents may cost, however much its definition allows. */
    readonly budgetCents: number | undefined
  }
  readonly scheduleId?: string
  /** Instead of that of the definition. */
  readonly webhook?: WebhookTarget
}

/** A stored definition, or one without an id. */
interface FoundDefinition {
  readonly id: string | undefined
  readonly version: number | undefined
  readonly definition: Definition
}

/** A node that waits for something. */
export interface Waiting {
  readonly run_id: string
  readonly id: string
  readonly attempt: number
  readonly spec: WorkflowNode
}

export interface StoreDeps {
  readonly database: Database
  readonly wakeUps: WakeUps
  readonly limits: TenantLimits | undefined
  readonly billing: Billing | undefined
  readonly schemas: OutputSchemas
}

/** A node beside its texts: its row with its entries in indexes, and its edges. */
const bytesOfNode = 400

export class WorkflowRunStore {
  readonly #database: Database
  readonly #wakeUps: WakeUps
  readonly #limits: TenantLimits | undefined
  readonly #billing: Billing | undefined
  readonly #schemas: OutputSchemas
  constructor({ database, wakeUps, limits, billing, schemas }: StoreDeps) {
    this.#database = database
    this.#wakeUps = wakeUps
    this.#limits = limits
    this.#billing = billing
    this.#schemas = schemas
  }

  /** Rejects with 402 for a tenant without credit, and with 409 for one whose store is full. */
  async admit(tenantId: string): Promise<void> {
    this.#limits?.stored.admit(tenantId)
    await this.#billing?.gate(tenantId)
  }

  /** Why a tenant may begin nothing now, as a sentence. */
  async refusal(tenantId: string): Promise<string | undefined> {
    try {
      await this.admit(tenantId)
      return undefined
    } catch (error) {
      if (!isAppError(error) || error.status >= 500) throw error
      return error.sentence ?? error.code
    }
  }

  /** Stores a run with its nodes, and has it begun. A run of the same id that exists is left as it is. Rejects with 404, 400 `invalid_input`, 402, 429. */
  async create(tenantId: string, wanted: NewRun): Promise<{ id: string; status: RunStatus }> {
    await this.admit(tenantId)
    const found = wanted.definition
      ? { id: undefined, version: undefined, definition: wanted.definition }
      : await findDefinition(this.#database, tenantId, wanted.workflowDefinitionId ?? '')
    if (!found) throw notFound({ message: 'No workflow definition has this id.' })
    const { inputSchema } = found.definition
    if (inputSchema) {
      const problem = await (await this.#schemas(tenantId, inputSchema)).problemOf(wanted.input)
      if (problem) throw workflowErrors.invalidInput({ message: `The input does not fit: ${problem}` })
    }
    // Whom a full tenant is refused leaves no wake-up behind, of which it would have thousands before its own work is looked at.
    const most = wanted.parent ? undefined : this.#limits?.of(tenantId).workflowRuns
    if (most !== undefined && (await this.countOpen(tenantId)) >= most) throw overLimit('workflowRuns', most)
    const { statements, inserts, made } = await this.#creation(tenantId, wanted, found)
    return made((await this.#database.batch<object[][]>(tenantId, statements))[inserts]!)
  }

  /** The same inside a transaction, of a definition that was found, with an input that fits. */
  async createIn(tx: TenantTx, wanted: NewRun, found: FoundDefinition): Promise<{ id: string; status: RunStatus }> {
    const creation = await this.#creation(tx.tenantId, wanted, found)
    let made: { id: string; status: RunStatus } | undefined
    for (const [i, statement] of creation.statements.entries()) {
      const rows = await tx.query(statement)
      // What is refused here is woken by nobody: the transaction may go on without it.
      if (i === creation.inserts) made = creation.made(rows)
    }
    return made!
  }

  /** The statements that create a run, of which one says whether it was inserted, and what that means. */
  async #creation(tenantId: string, wanted: NewRun, { id: definitionId, version, definition }: FoundDefinition) {
    const { nodes, name, webhook, ...own } = definition
    const { parent } = wanted
    const caps = [own.maxCostCents, parent?.budgetCents].filter((cap) => cap !== undefined)
    const settings: RunSettings = { ...own, ...(caps.length > 0 ? { maxCostCents: Math.min(...caps) } : {}) }
    const limits = this.#limits?.of(tenantId)
    if (limits && nodes.length > limits.workflowNodes) throw overLimit('workflowNodes', limits.workflowNodes)
    // A child is a part of a run that was counted.
    const most = parent ? undefined : limits?.workflowRuns
    const id = wanted.id ?? newId('wfrun')
    const status: RunStatus = wanted.start ? 'running' : 'pending'
    // Whoever adds a run holds the lock of its tenant, so that each is counted before the next one is added.
    const lock = { text: 'SELECT pg_advisory_xact_lock(hashtextextended($1, 58))', values: [tenantId] }
    const [asked, given] = [JSON.stringify(settings), wanted.input]
    const specs = nodes.map((node) => JSON.stringify(node))
    const bytes = specs.reduce((sum, spec) => sum + bytesOfNode + spec.length, asked.length + given.length)
    const statements: Statement[] = [
      ...(most === undefined ? [] : [lock]),
      insertion([
        tenantId,
        id,
        definitionId,
        version,
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
        mayBeKeyed(nodes),
        most,
        ...columnsOf(nodes, specs),
        (wanted.webhook ?? webhook)?.url,
      ]),
    ]
    const inserts = statements.length - 1
    if (wanted.start) statements.push(...(await this.#wakeUps.statements([wakeOf(tenantId, id)])))
    const made = (rows: readonly object[]): { id: string; status: RunStatus } => {
      // One of the same id is there, unless there was no room.
      if (rows.length === 0 && most !== undefined) throw overLimit('workflowRuns', most)
      if (rows.length > 0) this.#limits?.stored.add(tenantId, bytes)
      return { id, status }
    }
    return { statements, inserts, made }
  }

  async countOpen(tenantId: string): Promise<number> {
    const [[row]] = await this.#database.batch<[{ count: number }[]]>(tenantId, [
      {
        text: 'SELECT count(*)::int AS count FROM workflow_runs WHERE tenant_id = $1 AND status IN (1, 2) AND depth = 0',
        values: [tenantId],
      },
    ])
    return row!.count
  }

  async events(tenantId: string, runId: string, after: number): Promise<{ seq: number; event: string }[]> {
    const [rows] = await this.#database.batch<[{ seq: number; event: string }[]]>(tenantId, [
      {
        name: 'workflow-events',
        text: 'SELECT seq, event FROM workflow_events WHERE tenant_id = $1 AND run_id = $2 AND seq > $3 ORDER BY seq LIMIT 50',
        values: [tenantId, runId, after],
      },
    ])
    return rows
  }
  async statusOf(
    tenantId: string,
    runId: string,
  ): Promise<{ status: RunStatus; seq: number; output: string | null; error: string | null }> {
    const [[row]] = await this.#database.batch<
      [{ status: number; seq: number; output: string | null; error: string | null }[]]
    >(tenantId, [
      {
        name: 'workflow-status',
        text: 'SELECT status, seq, output, error FROM workflow_runs WHERE tenant_id = $1 AND id = $2',
        values: [tenantId, runId],
      },
    ])
    if (!row) throw unknownRun()
    return { ...row, status: runStatuses[row.status]! }
  }

  async lastPart(tenantId: string, runId: string, parent: string) {
    const [[row]] = await this.#database.batch<[{ part: number; output: string | null; error: string | null }[]]>(
      tenantId,
      [
        {
          text: `SELECT part, output, error FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND parent = $3 ORDER BY part DESC LIMIT 1`,
          values: [tenantId, runId, parent],
        },
      ],
    )
    return row
  }
  /** The outputs of the parts of a map as they are stored, in their order. Undefined: they have more bytes than `most`. */
  async partOutputs(
    tenantId: string,
    runId: string,
    parent: string,
    most: number,
  ): Promise<(string | null)[] | undefined> {
    const [rows] = await this.#database.batch<[{ output: string | null; isLarge: boolean }[]]>(tenantId, [
      {
        text: `SELECT CASE WHEN total <= $4::int THEN output END AS output, total > $4::int AS "isLarge" FROM (
                 SELECT output, part, coalesce(sum(octet_length(output)) OVER (), 0) AS total FROM workflow_nodes
                 WHERE tenant_id = $1 AND run_id = $2 AND parent = $3) p
               ORDER BY part`,
        values: [tenantId, runId, parent, 4 * most],
      },
    ])
    return rows[0]?.isLarge ? undefined : rows.map(({ output }) => output)
  }
  async countNodes(tenantId: string, runId: string): Promise<number> {
    const [[row]] = await this.#database.batch<[{ count: number }[]]>(tenantId, [
      {
        text: 'SELECT count(*)::int AS count FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2',
        values: [tenantId, runId],
      },
    ])
    return row!.count
  }
  /** What the agents of a run have cost, in cents. */
  async cost(tenantId: string, runId: string): Promise<number> {
    const [[row]] = await this.#database.batch<[{ cost: number }[]]>(tenantId, [
      {
        text: 'SELECT coalesce(sum(cost_cents), 0)::float8 AS cost FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2',
        values: [tenantId, runId],
      },
    ])
    return row!.cost
  }
  /** Whether the run of an agent waits for people, or has. */
  async hasWaited(tenantId: string, agentRunId: string): Promise<boolean> {
    const [rows] = await this.#database.batch<[object[]]>(tenantId, [
      {
        name: 'workflow-agent-waited',
        text: 'SELECT 1 FROM runs WHERE tenant_id = $1 AND id = $2 AND waited_ms IS NOT NULL',
        values: [tenantId, agentRunId],
      },
    ])
    return rows.length > 0
  }
  /** The node that waits for something, while it does. */
  async waiting(tenantId: string, waitsFor: string): Promise<Waiting | undefined> {
    const [[row]] = await this.#database.batch<[{ run_id: string; id: string; attempt: number; spec: string }[]]>(
      tenantId,
      [
        {
          name: 'workflow-waiting',
          text: `SELECT n.run_id, n.id, n.attempt, t.spec FROM workflow_nodes n
                 JOIN workflow_nodes t ON t.tenant_id = n.tenant_id AND t.run_id = n.run_id AND t.id = split_part(n.id, '.', 1)
                 WHERE n.tenant_id = $1 AND n.waits_for = $2 AND n.status = 2`,
          values: [tenantId, waitsFor],
        },
      ],
    )
    return row && { ...row, spec: partOf(JSON.parse(row.spec) as WorkflowNode, row.id) }
  }
}

export const wakeOf = (tenantId: string, runId: string) => ({ tenantId, what: { tenantId, runId }, key: runId })

/** Whether a node, or what a map or loop does, may have a key of concurrency. */
export const mayBeKeyed = (nodes: readonly object[]): boolean => JSON.stringify(nodes).includes('"concurrencyKey"')

/** A run with its nodes and edges; no row: there is one of this id, or there are as many as may be. */
const insertion = (values: readonly unknown[]): Statement => ({
  name: 'workflow-create',
  text: `WITH run AS (
           INSERT INTO workflow_runs (tenant_id, id, definition_id, definition_version, name, settings, input, status, unfinished, depth,
             parent_run, parent_node, root_run, schedule_id, created_by, keyed, started_at, webhook_url)
           SELECT $1, $2, $3, $4::int, $5, $6, $7, $8::smallint, $9::int, $10::int, $11, $12, $13, $14, $15, $16::boolean,
             CASE WHEN $8::smallint = 1 THEN clock_timestamp() END,
             coalesce($26, (SELECT webhook_url FROM workflow_runs WHERE tenant_id = $1 AND id = $11))
           WHERE $17::int IS NULL OR $17::int > (
             SELECT count(*) FROM workflow_runs WHERE tenant_id = $1 AND status IN (1, 2) AND depth = 0)
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
function columnsOf(nodes: readonly WorkflowNode[], specs: readonly string[]): readonly unknown[] {
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
