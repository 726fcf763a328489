import { setImmediate as turn } from 'node:timers/promises'
import { isAppError } from '#kernel'
import type { Billing } from '#contracts/billing'
import type { Database, TenantTx } from '#contracts/database'
import type { WakeUps } from '#contracts/jobs'
import { isId } from '#contracts/ids'
import { overLimit, type TenantLimits, type WaitForTurn } from '#contracts/limits'
import { ahead } from '#kit'
import type { OutputSchemas } from '#kit/schemas'
import type { FirstClaim } from './claims.store.ts'
import {
  type Begun,
  countOf,
  creationOf,
  firstOf,
  limitOf,
  lockOf,
  longBytes,
  type NewRun,
  type Peers,
  peersOf,
} from './creation.store.ts'
import {
  definitionOf,
  type DefinitionRow,
  type FoundDefinition,
  type Glance,
  glanceAt,
  RecentDefinitions,
  unknownDefinition,
} from './definitions.store.ts'
import { workflowErrors } from './errors.ts'
import { edgesOf } from './graph.ts'
import { partOf, type WorkflowNode } from './node.schema.ts'
import { type Definition, type RunStatus, runStatuses } from './schema.ts'
import { unknownRun } from './views.store.ts'

/** A run of a stored definition takes a turn more for each part of this size: its request has a few bytes, and reads and writes megabytes. */
const bytesOfTurn = 32 * 1024

/** At least so many runs are counted for those who look at their use. */
const mostShown = 10_000

/** A running node that waits for an agent run, a child run, a signal or an approval. */
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

/** Executes the first nodes of the runs that this store creates. */
export interface Beginner {
  /** Reserves room for nodes of a tenant. The caller must begin that many nodes or give the rest back. */
  take(tenantId: string, wanted: number): FirstClaim
  begin(tenantId: string, begun: Begun, nowMs: number): void
  give(tenantId: string, count: number): void
}

export class WorkflowRunStore {
  readonly #database: Database
  readonly #wakeUps: WakeUps
  readonly #limits: TenantLimits | undefined
  readonly #billing: Billing | undefined
  readonly #schemas: OutputSchemas
  readonly #recent = new RecentDefinitions()
  readonly #turn: WaitForTurn | undefined
  #beginner: Beginner | undefined
  constructor({ database, wakeUps, limits, billing, schemas }: StoreDeps) {
    this.#database = database
    this.#wakeUps = wakeUps
    this.#limits = limits
    this.#billing = billing
    this.#schemas = schemas
    this.#turn = limits?.pace(ahead.atOnce)
  }

  /** Rejects with 402 for a tenant without credit, and with 409 for one whose store is full. */
  async admit(tenantId: string): Promise<void> {
    this.#limits?.stored.admit(tenantId)
    await this.#billing?.gate(tenantId)
  }

  /** Enforces the limit on open runs for a run without a parent that this transaction begins, under the tenant's lock. Rejects with 429. */
  async admitIn(tx: TenantTx): Promise<void> {
    const most = this.#limits?.of(tx.tenantId).workflowRuns
    if (most === undefined) return
    await tx.query(lockOf(tx.tenantId, 'open'))
    const [row] = await tx.query<{ count: number }>(countOf(tx.tenantId, 'open', most))
    if (row!.count >= most) throw overLimit('workflowRuns', most)
  }

  /** Why a schedule may not begin a run of this tenant now, as a sentence; undefined: it may. */
  async refusal(tenantId: string): Promise<string | undefined> {
    try {
      if (this.#limits?.of(tenantId).writesPerMinute === 0) throw overLimit('writesPerMinute', 0)
      await this.admit(tenantId)
      return undefined
    } catch (error) {
      if (!isAppError(error) || error.status >= 500) throw error
      return error.sentence ?? error.code
    }
  }

  /**
   * Stores a run with its nodes and begins it. An existing run of the same id stays as it is. Rejects with 404, 400 `invalid_input`, 402, and at the
   * limit on runs with 429, or with 409 if it would be pending.
   */
  async create(tenantId: string, wanted: NewRun): Promise<{ id: string; status: RunStatus }> {
    await this.admit(tenantId)
    const recent = this.#recent.of(tenantId, wanted.workflowDefinitionId)
    if (recent) {
      await this.#takeTurns(tenantId, wanted, recent.size ?? 0)
      const made = await this.#createOf(tenantId, wanted, recent, true)
      if (made) return made
      // Nothing was inserted: the definition changed, the tenant is at its limit, or the id is taken. The look below tells which.
      this.#recent.forget(tenantId, recent)
    }
    const found = await this.#look(tenantId, wanted)
    const made = await this.#createOf(tenantId, wanted, found, false)
    // Only child runs bring an id, and they have no limit. Under a limit, no row means that the tenant reached it meanwhile.
    if (!made) this.#refuse(tenantId, peersOf(wanted))
    if (made && wanted.workflowDefinitionId !== undefined) this.#recent.keep(tenantId, found)
    return made ?? { id: wanted.id!, status: wanted.start ? 'running' : 'pending' }
  }
  /** Throws if there is a limit on runs like these. */
  #refuse(tenantId: string, peers: Peers | undefined): void {
    const limit = peers && limitOf[peers]
    const most = limit && this.#limits?.of(tenantId)[limit]
    if (most !== undefined) throw overLimit(limit!, most)
  }
  /** Makes this process begin new runs at once: the statement that stores a run also claims its first nodes. */
  beginsWith(beginner: Beginner): void {
    this.#beginner = beginner
  }
  /** `isRecent`: insert only if the definition still has the version that is in memory. Undefined: nothing was inserted. */
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
    const beginner = wanted.start ? this.#beginner : undefined
    const edges = edgesOf(found.definition.nodes)
    const claim = beginner?.take(tenantId, firstOf(found.definition.nodes, edges).length)
    let unused = claim?.most ?? 0
    try {
      const limits = this.#limits?.of(tenantId)
      const creation = await creationOf(tenantId, wanted, found, { edges, limits, claim, isRecent })
      const { insertion, wake, begun, lock, id, status } = creation
      // What was made is written out anew for the database.
      if (creation.bytes > longBytes) await turn()
      const before = lock ? [lock] : []
      const after = wake ? await this.#wakeUps.statements([wake]) : []
      const rows = await this.#database.batch<object[][]>(tenantId, [...before, insertion, ...after])
      const [row] = rows[before.length] as { now_ms: number }[]
      if (!row) return undefined
      this.#limits?.stored.add(tenantId, creation.bytes)
      if (begun) {
        unused -= begun.nodes.length
        beginner?.begin(tenantId, begun, row.now_ms)
      }
      return { id, status }
    } finally {
      beginner?.give(tenantId, unused)
    }
  }

  /** Waits until the tenant may make a run of so many bytes. Rejects a request with 429 that would wait too long; child runs wait for their turns. */
  async #takeTurns(tenantId: string, { parent }: NewRun, bytes: number): Promise<void> {
    const turns = Math.floor(bytes / bytesOfTurn)
    if (turns === 0) return
    if (parent) await this.#turn?.(tenantId, undefined, turns)
    else await this.#limits?.turn(tenantId, 'writesPerMinute', turns)
  }

  /**
   * Finds the definition, and counts what counts for the limit, in one round trip; a large definition is read with another one, when it is its turn.
   * The limit is checked before the insertion, because a refused insertion still stores its wake-up: thousands of such wake-ups would delay the
   * tenant's real work.
   */
  async #look(tenantId: string, wanted: NewRun): Promise<FoundDefinition> {
    const { definition, workflowDefinitionId: id = '' } = wanted
    const peers = peersOf(wanted)
    const most = peers && this.#limits?.of(tenantId)[limitOf[peers]]
    const isStored = !definition && isId('wfdef', id)
    const counts = peers && most !== undefined ? [countOf(tenantId, peers, most)] : []
    const asked = [...counts, ...(isStored ? [glanceAt(tenantId, id)] : [])]
    const rows = await this.#database.batch<object[][]>(tenantId, asked)
    const [counted] = (counts.length > 0 ? rows.shift()! : []) as { count: number }[]
    if (counted && counted.count >= most!) this.#refuse(tenantId, peers)
    if (definition) return { id: undefined, version: undefined, definition }
    const [glance] = (rows.shift() ?? []) as Glance[]
    if (!glance) throw unknownDefinition()
    const { size } = glance
    await this.#takeTurns(tenantId, wanted, size)
    const { version, document } = glance.document === null ? await this.#large(tenantId, id) : glance
    const found = { id, version, definition: JSON.parse(document!) as Definition, size }
    if (size > longBytes) await turn()
    return found
  }
  async #large(tenantId: string, id: string): Promise<DefinitionRow> {
    const [[row]] = await this.#database.batch<[DefinitionRow[]]>(tenantId, [definitionOf(tenantId, id)])
    if (!row) throw unknownDefinition()
    return row
  }

  /** Creates a run inside a transaction. The caller has found the definition and checked the input. */
  async createIn(tx: TenantTx, wanted: NewRun, found: FoundDefinition): Promise<{ id: string; status: RunStatus }> {
    const { tenantId } = tx
    const edges = edgesOf(found.definition.nodes)
    const creation = await creationOf(tenantId, wanted, found, { edges, limits: this.#limits?.of(tenantId) })
    const { id, status, insertion, wake, lock, bytes } = creation
    const rows = (await tx.queries<object[][]>([...(lock ? [lock] : []), insertion])).at(-1)!
    // A refused run gets no wake-up, because the caller may commit the transaction without the run.
    if (rows.length === 0) this.#refuse(tenantId, peersOf(wanted))
    for (const statement of wake ? await this.#wakeUps.statements([wake]) : []) tx.atEnd(statement)
    if (rows.length > 0) this.#limits?.stored.add(tenantId, bytes)
    return { id, status }
  }

  /** Counts runs without a parent, up to their limit and 10,000 at least: there may be millions from before there was a limit. */
  async count(tenantId: string, peers: Peers): Promise<number> {
    const most = Math.max(this.#limits?.of(tenantId)[limitOf[peers]] ?? 0, mostShown)
    const [[row]] = await this.#database.batch<[{ count: number }[]]>(tenantId, [countOf(tenantId, peers, most)])
    return row!.count
  }

  /** The next events, up to the one that makes them a mebibyte: the slowest reader holds no more. */
  async events(tenantId: string, runId: string, after: number): Promise<{ seq: number; event: string }[]> {
    const [rows] = await this.#database.batch<[{ seq: number; event: string }[]]>(tenantId, [
      {
        name: 'workflow-events',
        text: `SELECT seq, event FROM (
                 SELECT seq, event, sum(octet_length(event)) OVER (ORDER BY seq) - octet_length(event) AS before FROM (
                   SELECT seq, event FROM workflow_events WHERE tenant_id = $1 AND run_id = $2 AND seq > $3 ORDER BY seq LIMIT 50
                 ) next
               ) weighed WHERE before < ${1024 * 1024} ORDER BY seq`,
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
  /** The outputs of the parts of a map in stored form, in order. Undefined: together they have more than four times `most` bytes. */
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
  /** The running node that waits for this id or signal. Undefined: no node waits for it any more. */
  async waiting(tenantId: string, waitsFor: string): Promise<Waiting | undefined> {
    const [[row]] = await this.#database.batch<[{ run_id: string; id: string; attempt: number; spec: string }[]]>(
      tenantId,
      [
        {
          name: 'workflow-waiting',
          text: `SELECT n.run_id, n.id, n.attempt, t.spec FROM workflow_nodes n CROSS JOIN LATERAL (
                   SELECT spec FROM workflow_nodes WHERE tenant_id = $1 AND run_id = n.run_id AND id = split_part(n.id, '.', 1) OFFSET 0
                 ) t
                 WHERE n.tenant_id = $1 AND n.waits_for = $2 AND n.status = 2`,
          values: [tenantId, waitsFor],
        },
      ],
    )
    return row && { ...row, spec: partOf(JSON.parse(row.spec) as WorkflowNode, row.id) }
  }
}
