import type { TenantTx } from '#contracts/database'
import { ExpressionError, mentionedIn, patiently, render, textsIn } from './expressions.ts'
import { skipped } from './nodes.store.ts'
import { mostOutput, scopeOfNodes } from './outcome.ts'
import type { RunSettings } from './schema.ts'

/** What a completed run gives, as JSON. ExpressionError when that cannot be made. */
export async function outputOf(tx: TenantTx, runId: string, { output }: RunSettings): Promise<string> {
  const { tenantId } = tx
  if (output === undefined) {
    const last = await tx.query<{ id: string; output: string | null }>({
      name: 'workflow-last-outputs',
      text: `SELECT n.id, n.output FROM workflow_nodes n WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.parent IS NULL AND n.status <> ${skipped}
                 AND NOT EXISTS (SELECT FROM workflow_edges e JOIN workflow_nodes t ON t.tenant_id = $1 AND t.run_id = $2 AND t.id = e.to_node
                   WHERE e.tenant_id = $1 AND e.run_id = $2 AND e.from_node = n.id AND t.status <> ${skipped})
               ORDER BY n.position LIMIT 1000`,
      values: [tenantId, runId],
    })
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
