import { setImmediate as turn } from 'node:timers/promises'
import { notFound } from '#kernel'
import type { Database } from '#contracts/database'
import { isClientId } from '#contracts/ids'
import type { Listing, Page } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import type { Failure } from './outcome.ts'
import { mostEdges } from './graph.ts'
import { isLinked, linkMark, type Outputs } from './outputs.ts'
import { type NodeSnapshot, type RunListed, type RunStatus, runStatuses } from './schema.ts'

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

/**
 * The most bytes of the input in a snapshot, of one output, and of all outputs or errors of nodes together. What is larger is left out; clients read
 * it with routes of its own.
 */
const shownInput = 1024 * 1024
const shownEach = 64 * 1024
const shownTogether = 4 * 1024 * 1024
/** SQL condition: the output is in its row, and not a link to the object store. */
const inRow = `NOT starts_with(output, '${linkMark}')`

/** Workflow runs as their tenant sees them. */
export class RunViews {
  readonly #database: Database
  readonly #outputs: Outputs
  constructor(database: Database, outputs: Outputs) {
    this.#database = database
    this.#outputs = outputs
  }

  /** Lists runs, newest first. */
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

  /** A consistent snapshot of the whole run as JSON, with the number of its last event. 404 when there is no such run. */
  async snapshot(tenantId: string, id: string): Promise<{ readonly seq: number; readonly json: string }> {
    if (!isClientId(id)) throw unknownRun()
    const of = [tenantId, id]
    const [[row], nodes, edges] = await this.#database
      .as('reads')
      .batch<
        [
          (Row & { input: string | null; output: string | null; has_output: boolean; seq: number })[],
          NodeRow[],
          { from_node: string; to_node: string }[],
        ]
      >(tenantId, [
        // The lock (`FOR SHARE`) keeps the run from changing while its nodes are read.
        {
          text: `SELECT ${listed}, CASE WHEN octet_length(input) <= ${shownInput} THEN input END AS input,
                   CASE WHEN octet_length(output) <= ${shownTogether} AND ${inRow} THEN output END AS output,
                   output IS NOT NULL AS has_output, seq
                 FROM workflow_runs WHERE tenant_id = $1 AND id = $2 FOR SHARE`,
          values: of,
        },
        {
          text: `SELECT id, type, status, parent, attempt, waits_for, due_at, started_at, finished_at,
                     CASE WHEN sum(octet_length(error)) OVER (ORDER BY position, part, id) <= ${shownTogether} THEN error END AS error,
                     error IS NOT NULL AS has_error, CASE WHEN octet_length(output) <= ${shownEach} AND ${inRow}
                            AND sum(octet_length(output)) OVER (ORDER BY position, part, id) <= ${shownTogether}
                       THEN output END AS output, output IS NOT NULL AS has_output
                   FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 ORDER BY position, part NULLS FIRST, id`,
          values: of,
        },
        // Only a run that began before there was this limit has more.
        {
          text: `SELECT from_node, to_node FROM workflow_edges WHERE tenant_id = $1 AND run_id = $2 LIMIT ${mostEdges}`,
          values: of,
        },
      ])
    if (!row) throw unknownRun()
    const before = Map.groupBy(edges, ({ to_node }) => to_node)
    const nodesJson: string[] = []
    for (const [i, node] of nodes.entries()) {
      const dependsOn = before.get(node.id)?.map(({ from_node }) => from_node) ?? []
      nodesJson.push(withJson(toNode(node, dependsOn, node.output === null && node.has_output), outputIn(node)))
      if (i % 1_000 === 999) await turn()
    }
    const run = {
      ...toListed(row),
      ...(row.input === null ? { inputTruncated: true } : {}),
      ...(row.output === null && row.has_output ? { outputTruncated: true } : {}),
    }
    const input = row.input === null ? {} : { input: row.input }
    const json = withJson(run, { ...input, ...outputIn(row), nodes: `[${nodesJson.join(',')}]` })
    return { seq: row.seq, json }
  }

  /** One node with its whole output, as JSON. 404 when there is no such node, 410 when its output is no longer in the object store. */
  async node(tenantId: string, runId: string, nodeId: string): Promise<string | AsyncIterable<Uint8Array>> {
    const [[row], edges] = await this.#database.batch<[NodeRow[], { from_node: string }[]]>(tenantId, [
      {
        text: `SELECT id, type, status, parent, attempt, waits_for, due_at, error, started_at, finished_at, output,
                 output IS NOT NULL AS has_output, error IS NOT NULL AS has_error
               FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND id = $3`,
        values: [tenantId, runId, nodeId],
      },
      {
        text: 'SELECT from_node FROM workflow_edges WHERE tenant_id = $1 AND run_id = $2 AND to_node = $3',
        values: [tenantId, runId, nodeId],
      },
    ])
    if (!row) throw notFound({ message: 'There is no such node, or no such run.' })
    const node = toNode(
      row,
      edges.map(({ from_node }) => from_node),
      false,
    )
    if (row.output === null || !isLinked(row.output)) return withJson(node, outputIn(row))
    const output = await this.#outputs.stream({ tenantId, runId }, row.output)
    return around(`${JSON.stringify(node).slice(0, -1)},"output":`, output, '}')
  }

  /** The input of a run, as JSON. */
  async input(tenantId: string, runId: string): Promise<string> {
    const [[row]] = await this.#database.batch<[{ input: string }[]]>(tenantId, [
      { text: 'SELECT input FROM workflow_runs WHERE tenant_id = $1 AND id = $2', values: [tenantId, runId] },
    ])
    if (!row) throw unknownRun()
    return row.input
  }

  /** The whole output of a run, as JSON. 404 when there is none yet. */
  async output(tenantId: string, runId: string): Promise<string | AsyncIterable<Uint8Array>> {
    const [[row]] = await this.#database.batch<[{ output: string | null }[]]>(tenantId, [
      { text: 'SELECT output FROM workflow_runs WHERE tenant_id = $1 AND id = $2', values: [tenantId, runId] },
    ])
    if (!row) throw unknownRun()
    if (row.output === null) throw notFound({ message: 'The workflow run has no output: it has not completed.' })
    return isLinked(row.output) ? this.#outputs.stream({ tenantId, runId }, row.output) : row.output
  }
}

/** Adds fields that are JSON already to an object, and returns JSON. The fields may have megabytes, so they are not parsed. */
const withJson = (value: object, fields: Readonly<Record<string, string>>): string =>
  JSON.stringify(value).slice(0, -1) +
  Object.entries(fields)
    .map(([name, json]) => `,${JSON.stringify(name)}:${json}`)
    .join('') +
  '}'
const outputIn = ({ output }: { readonly output: string | null }): { output?: string } =>
  output === null ? {} : { output }

async function* around(head: string, body: AsyncIterable<Uint8Array>, tail: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(head)
  yield* body
  yield Buffer.from(tail)
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
  has_error: boolean
  started_at: string | null
  finished_at: string | null
}
const waitingFor = { agent: 'agentRunId', workflow: 'workflowRunId', approval: 'approvalId' } as const

/** The snapshot of a node, without its output. */
function toNode(row: NodeRow, dependsOn: string[], outputTruncated: boolean): NodeSnapshot {
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
    ...(outputTruncated ? { outputTruncated } : {}),
    ...(row.error !== null ? { error: failureOf(row.error) } : row.has_error ? { errorTruncated: true } : {}),
    ...(row.started_at === null ? {} : { startedAt: row.started_at }),
    ...(row.finished_at === null ? {} : { finishedAt: row.finished_at }),
  }
}
