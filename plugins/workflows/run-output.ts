import type { TenantTx } from '#contracts/database'
import type { OutputSchemas } from '#kit/schemas'
import { ExpressionError, mentionedIn, patiently, render, textsIn } from './expressions.ts'
import { skipped } from './nodes.store.ts'
import { mostOutput, scopeOfNodes } from './outcome.ts'
import type { RunSettings } from './schema.ts'

/** What a completed run gives, as JSON. ExpressionError when that cannot be made, or is not what the workflow promises. */
export async function outputOf(
  tx: TenantTx,
  runId: string,
  settings: RunSettings,
  schemas: OutputSchemas,
): Promise<string> {
  const made = await madeOf(tx, runId, settings)
  const { outputSchema } = settings
  if (!outputSchema) return made
  const problem = await (await schemas(tx.tenantId, outputSchema)).problem(JSON.parse(made))
  if (problem !== undefined) throw new ExpressionError(`it does not fit the outputSchema: ${problem}`)
  return made
}

async function madeOf(tx: TenantTx, runId: string, { output }: RunSettings): Promise<string> {
  const { tenantId } = tx
  if (output === undefined) {
    const last = await lastOutputs(tx, runId)
    const made =
      last.length === 1
        ? (last[0]!.output ?? 'null')
        : `{${last.map((one) => `${JSON.stringify(one.id)}:${one.output ?? 'null'}`).join(',')}}`
    if (made.length > mostOutput) throw new ExpressionError('it is larger than 10 MiB')
    return made
  }
  const ids = [...textsIn(output)].flatMap(({ text }) => mentionedIn(text))
  const rows = await tx.query<{ id: string; status: number; output: string | null; error: string | null }>({
    text: `SELECT id, status, output, error FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND id = ANY ($3)`,
    values: [tenantId, runId, ids],
  })
  const [{ input }] = (await tx.query<{ input: string }>({
    text: 'SELECT input FROM workflow_runs WHERE tenant_id = $1 AND id = $2',
    values: [tenantId, runId],
  })) as [{ input: string }]
  const scope = { input: JSON.parse(input) as unknown, nodes: scopeOfNodes(rows) }
  const made = JSON.stringify(await patiently(() => render(output, scope))) ?? 'null'
  if (made.length > mostOutput) throw new ExpressionError('it is larger than 10 MiB')
  return made
}

/**
 * Of the nodes behind which nothing was done, in their order. Without a join: before
 * the first ANALYZE its plan took minutes.
 */
async function lastOutputs(tx: TenantTx, runId: string): Promise<{ id: string; output: string | null }[]> {
  const of = [tx.tenantId, runId]
  const nodes = await tx.query<{ id: string; output: string | null }>({
    name: 'workflow-done-nodes',
    text: `SELECT id, CASE WHEN count(*) OVER () = 1 THEN output END AS output FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND parent IS NULL AND status <> ${skipped} ORDER BY position`,
    values: of,
  })
  if (nodes.length === 1) return nodes
  const edges = await tx.query<{ from_node: string; to_node: string }>({
    name: 'workflow-all-edges',
    text: 'SELECT from_node, to_node FROM workflow_edges WHERE tenant_id = $1 AND run_id = $2',
    values: of,
  })
  const done = new Set(nodes.map(({ id }) => id))
  const followed = new Set(edges.filter(({ to_node }) => done.has(to_node)).map(({ from_node }) => from_node))
  return tx.query<{ id: string; output: string | null }>({
    name: 'workflow-last-outputs',
    text: `SELECT id, output FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND id = ANY ($3) ORDER BY position LIMIT 1000`,
    values: [...of, [...done].filter((id) => !followed.has(id))],
  })
}
