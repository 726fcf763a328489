import { notFound } from '#kernel'
import type { Database } from '#contracts/database'
import { isClientId } from '#contracts/ids'
import type { Listing, Page } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import type { Failure } from './outcome.ts'
import { type NodeSnapshot, type RunListed, type RunSnapshot, type RunStatus, runStatuses } from './schema.ts'

interface Row {
  id: string
  name: string
  status: number
  definition_id: string | null
  definition_version: number | null
  schedule_id: string | null
  parent_run: string | null
  rerun_of: string | null
  error: string | null
  created_at: string
  started_at: string | null
  finished_at: string | null
}
const listed = `id, name, status, definition_id, definition_version, schedule_id, parent_run, rerun_of, error, created_at, started_at, finished_at`

function toListed(row: Row): RunListed {
  return {
    id: row.id,
    runId: row.id,
    name: row.name,
    status: row.status,
    ...(row.definition_id === null ? {} : { workflowDefinitionId: row.definition_id }),
    ...(row.definition_version === null ? {} : { definitionVersion: row.definition_version }),
    ...(row.schedule_id === null ? {} : { scheduleId: row.schedule_id }),
    ...(row.parent_run === null ? {} : { parentRunId: row.parent_run }),
    ...(row.rerun_of === null ? {} : { rerunOf: row.rerun_of }),
    ...(row.error === null ? {} : { error: failureOf(row.error) }),
    createdAt: row.created_at,
    ...(row.started_at === null ? {} : { startedAt: row.started_at }),
    ...(row.finished_at === null ? {} : { finishedAt: row.finished_at }),
  }
}
const failureOf = (text: string): { code: string; message: string } => JSON.parse(text) as Failure

/** Outputs in snapshots: each may have so many characters, and all together so many. The rest is read by itself. */
const shownEach = 64 * 1024
const shownTogether = 4 * 1024 * 1024

/** Workflow runs as their tenant sees them. */
export class RunViews {
  readonly #database: Database
  constructor(database: Database) {
    this.#database = database
  }

  /** Newest first. */
  list(
    tenantId: string,
    page: Page,
    filter: {
      status?: RunStatus | undefined
      workflowDefinitionId?: string | undefined
      scheduleId?: string | undefined
    },
  ): Promise<Listing<RunListed>> {
    const values: unknown[] = [tenantId]
    const conditions = ['tenant_id = $1']
    const add = (column: string, value: unknown): void => {
      if (value === undefined) return
      values.push(value)
      conditions.push(`${column} = $${values.length}`)
    }
    add('status', filter.status === undefined ? undefined : runStatuses.indexOf(filter.status))
    add('definition_id', filter.workflowDefinitionId)
    add('schedule_id', filter.scheduleId)
    const list: ListSql = {
      columns: listed,
      from: 'workflow_runs',
      where: conditions.join(' AND '),
      values,
      order: { created_at: 'timestamptz', id: 'text' },
      newestFirst: true,
      atOnce: 200,
    }
    return readList({ database: this.#database, tenantId }, list, page, toListed)
  }

  /** The whole run as it is at one moment, with the number of the event that led there. 404 when there is none. */
  async snapshot(tenantId: string, id: string): Promise<{ readonly seq: number; readonly run: RunSnapshot }> {
    if (!isClientId(id)) throw unknownRun()
    const of = [tenantId, id]
    const [[row], nodes, edges] = await this.#database
      .as('reads')
      .batch<
        [
          (Row & { input: string; output: string | null; seq: number })[],
          NodeRow[],
          { from_node: string; to_node: string }[],
        ]
      >(tenantId, [
        // Nobody moves the run while its parts are read.
        {
          text: `SELECT ${listed}, input, CASE WHEN length(output) <= ${shownTogether} THEN output END AS output, seq
                   FROM workflow_runs WHERE tenant_id = $1 AND id = $2 FOR SHARE`,
          values: of,
        },
        {
          text: `SELECT id, type, status, parent, attempt, waits_for, due_at, error, started_at, finished_at,
                     CASE WHEN length(output) <= ${shownEach} AND sum(length(output)) OVER (ORDER BY position, part, id) <= ${shownTogether}
                       THEN output END AS output, output IS NOT NULL AS has_output
                   FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 ORDER BY position, part NULLS FIRST, id`,
          values: of,
        },
        { text: 'SELECT from_node, to_node FROM workflow_edges WHERE tenant_id = $1 AND run_id = $2', values: of },
      ])
    if (!row) throw unknownRun()
    const before = Map.groupBy(edges, ({ to_node }) => to_node)
    const { output } = row
    return {
      seq: row.seq,
      run: {
        ...toListed(row),
        input: JSON.parse(row.input) as unknown,
        ...(output === null ? {} : { output: JSON.parse(output) as unknown }),
        nodes: nodes.map((node) => toNode(node, before.get(node.id)?.map(({ from_node }) => from_node) ?? [])),
      },
    }
  }

  /** One node with its whole output. 404 when there is none. */
  async node(tenantId: string, runId: string, nodeId: string): Promise<NodeSnapshot> {
    const [[row], edges] = await this.#database.batch<[NodeRow[], { from_node: string }[]]>(tenantId, [
      {
        text: `SELECT id, type, status, parent, attempt, waits_for, due_at, error, started_at, finished_at, output,
                 output IS NOT NULL AS has_output
               FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND id = $3`,
        values: [tenantId, runId, nodeId],
      },
      {
        text: 'SELECT from_node FROM workflow_edges WHERE tenant_id = $1 AND run_id = $2 AND to_node = $3',
        values: [tenantId, runId, nodeId],
      },
    ])
    if (!row) throw notFound({ message: 'There is no such node, or no such run.' })
    return toNode(
      row,
      edges.map(({ from_node }) => from_node),
    )
  }
}

export const unknownRun = () => notFound({ message: 'There is no workflow run of this id.' })

interface NodeRow {
  id: string
  type: string
  status: number
  parent: string | null
  attempt: number
  waits_for: string | null
  due_at: string | null
  output: string | null
  has_output: boolean
  error: string | null
  started_at: string | null
  finished_at: string | null
}
const waitingFor = { agent: 'agentRunId', workflow: 'workflowRunId', approval: 'approvalId' } as const

function toNode(row: NodeRow, dependsOn: string[]): NodeSnapshot {
  const field = waitingFor[row.type as keyof typeof waitingFor] as string | undefined
  return {
    id: row.id,
    type: row.type,
    status: row.status,
    dependsOn,
    ...(row.parent === null ? {} : { parent: row.parent }),
    attempt: row.attempt,
    ...(field === undefined || row.waits_for === null ? {} : { [field]: row.waits_for }),
    ...(row.due_at === null || row.status > 2 ? {} : { dueAt: row.due_at }),
    ...(row.output === null
      ? row.has_output
        ? { outputTruncated: true }
        : {}
      : { output: JSON.parse(row.output) as unknown }),
    ...(row.error === null ? {} : { error: failureOf(row.error) }),
    ...(row.started_at === null ? {} : { startedAt: row.started_at }),
    ...(row.finished_at === null ? {} : { finishedAt: row.finished_at }),
  }
}
