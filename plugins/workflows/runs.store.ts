import { isAppError } from '#kernel'
import type { Billing } from '#contracts/billing'
import type { Database, Statement, TenantTx } from '#contracts/database'
import type { WakeUps } from '#contracts/jobs'
import { isId, newId } from '#contracts/ids'
import { overLimit, type TenantLimits } from '#contracts/limits'
import type { WebhookTarget } from '#contracts/runs'
import type { OutputSchemas } from '#kit/schemas'
import { columnsOf, insertion, lockOf, mayBeKeyed, openOf } from './creation.store.ts'
import {
  definitionOf,
  type DefinitionRow,
  type FoundDefinition,
  RecentDefinitions,
  unknownDefinition,
} from './definitions.store.ts'
import { workflowErrors } from './errors.ts'
import { partOf, type WorkflowNode } from './node.schema.ts'
import { type Definition, type RunSettings, type RunStatus, runStatuses } from './schema.ts'
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
export const bytesOfNode = 400

export class WorkflowRunStore {
  readonly #database: Database
  readonly #wakeUps: WakeUps
  readonly #limits: TenantLimits | undefined
  readonly #billing: Billing | undefined
  readonly #schemas: OutputSchemas
  readonly #recent = new RecentDefinitions()
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

  /** Counts a run that is begun in a transaction among those under way, of which there may be so many. Rejects with 429. */
  async admitIn(tx: TenantTx): Promise<void> {
    const most = this.#limits?.of(tx.tenantId).workflowRuns
    if (most === undefined) return
    await tx.query(lockOf(tx.tenantId))
    const [row] = await tx.query<{ count: number }>(openOf(tx.tenantId))
    if (row!.count >= most) throw overLimit('workflowRuns', most)
  }

  /** Why a tenant may begin nothing by schedule now, as a sentence. It waits for its turn, as what requests begin has waited. */
  async refusal(tenantId: string): Promise<string | undefined> {
    try {
      await this.#limits?.turn(tenantId, 'writesPerMinute', 1, { patient: true })
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
    const recent = this.#recent.of(tenantId, wanted.workflowDefinitionId)
    if (recent) {
      const made = await this.#createOf(tenantId, wanted, recent, true)
      if (made) return made
      // It has changed, or there is no room, or a run of this id: a look tells which.
      this.#recent.forget(tenantId, recent)
    }
    const most = wanted.parent ? undefined : this.#limits?.of(tenantId).workflowRuns
    const { found, open } = await this.#look(tenantId, wanted, most !== undefined)
    // Whom a full tenant is refused leaves no wake-up behind, of which it would have thousands before its own work is looked at.
    if (most !== undefined && open >= most) throw overLimit('workflowRuns', most)
    const made = await this.#createOf(tenantId, wanted, found, false)
    // One of the same id is there, unless there was no room.
    if (!made && most !== undefined) throw overLimit('workflowRuns', most)
    if (made && wanted.workflowDefinitionId !== undefined) this.#recent.keep(tenantId, found)
    return made ?? { id: wanted.id!, status: wanted.start ? 'running' : 'pending' }
  }
  /** `isRecent`: only while the definition is still what it was. Undefined: nothing was inserted. */
  async #createOf(
    tenantId: string,
    wanted: NewRun,
    found: FoundDefinition,
    isRecent: boolean,
  ): Promise<{ id: string; status: RunStatus } | undefined> {
    const { inputSchema } = found.definition
    if (inputSchema) {
      const problem = await (await this.#schemas(tenantId, inputSchema)).problemOf(wanted.input)
      if (problem) throw workflowErrors.invalidInput({ message: `The input does not fit: ${problem}` })
    }
    const { statements, inserts, made } = await this.#creation(tenantId, wanted, found, isRecent)
    return made((await this.#database.batch<object[][]>(tenantId, statements))[inserts]!)
  }

  /** What a run is of, and how many are open, in one round trip. */
  async #look(
    tenantId: string,
    { definition, workflowDefinitionId: id = '' }: NewRun,
    counts: boolean,
  ): Promise<{ found: FoundDefinition; open: number }> {
    const isStored = !definition && isId('wfdef', id)
    const asked = [...(counts ? [openOf(tenantId)] : []), ...(isStored ? [definitionOf(tenantId, id)] : [])]
    const rows = await this.#database.batch<object[][]>(tenantId, asked)
    const open = counts ? (rows.shift() as [{ count: number }])[0].count : 0
    if (definition) return { found: { id: undefined, version: undefined, definition }, open }
    const [row] = (rows.shift() ?? []) as DefinitionRow[]
    if (!row) throw unknownDefinition()
    return { found: { id, version: row.version, definition: JSON.parse(row.document) as Definition }, open }
  }

  /** The same inside a transaction, of a definition that was found, with an input that fits. */
  async createIn(tx: TenantTx, wanted: NewRun, found: FoundDefinition): Promise<{ id: string; status: RunStatus }> {
    const creation = await this.#creation(tx.tenantId, wanted, found)
    let made: { id: string; status: RunStatus } | undefined
    for (const [i, statement] of creation.statements.entries()) {
      const rows = await tx.query(statement)
      if (i !== creation.inserts) continue
      made = creation.made(rows)
      // What is refused here is woken by nobody: the transaction may go on without it.
      if (!made && creation.most !== undefined) throw overLimit('workflowRuns', creation.most)
    }
    return made ?? { id: wanted.id!, status: 'running' }
  }

  /** The statements that create a run, of which one says whether it was inserted, and what that means. */
  async #creation(tenantId: string, wanted: NewRun, found: FoundDefinition, isRecent = false) {
    const { id: definitionId, version, definition } = found
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
    const [asked, given] = [JSON.stringify(settings), wanted.input]
    const specs = nodes.map((node) => JSON.stringify(node))
    const bytes = specs.reduce((sum, spec) => sum + bytesOfNode + spec.length, asked.length + given.length)
    const statements: Statement[] = [
      ...(most === undefined ? [] : [lockOf(tenantId)]),
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
        isRecent,
      ]),
    ]
    const inserts = statements.length - 1
    if (wanted.start) statements.push(...(await this.#wakeUps.statements([wakeOf(tenantId, id)])))
    const made = (rows: readonly object[]): { id: string; status: RunStatus } | undefined => {
      if (rows.length === 0) return undefined
      this.#limits?.stored.add(tenantId, bytes)
      return { id, status }
    }
    return { statements, inserts, made, most }
  }

  async countOpen(tenantId: string): Promise<number> {
    const [[row]] = await this.#database.batch<[{ count: number }[]]>(tenantId, [openOf(tenantId)])
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
