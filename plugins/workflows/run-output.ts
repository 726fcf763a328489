import type { Database, Statement, TenantTx } from '#contracts/database'
import type { Evaluator } from './evaluator.ts'
import { ExpressionError } from './expressions.ts'
import type { LargeTurns } from './large-turns.ts'
import { skipped } from './nodes.store.ts'
import { type Failure, mostOutput } from './outcome.ts'
import { isLinked, type Outputs, type RunKey, sizeOf } from './outputs.ts'
import type { RunSettings } from './schema.ts'
import type { Scopes } from './scopes.ts'

export interface LastOutput {
  readonly id: string
  readonly output: string | null
}
type Tell = Pick<TenantTx, 'query'>

/**
 * The output of a run whose nodes have all ended, in stored form. Undefined: `conclude` has to make it, because it needs an expression, a schema or a
 * linked object, or has more than `most` characters. `done`: the executed nodes, where they are known already.
 */
export async function outputOf(
  tx: TenantTx,
  runId: string,
  settings: RunSettings,
  { most, done }: { readonly most: number; readonly done: readonly LastOutput[] | undefined },
): Promise<string | undefined> {
  if (settings.output !== undefined || settings.outputSchema) return undefined
  const last = await lastOutputs(tx, { tenantId: tx.tenantId, runId }, done)
  if (last.length === 1) return last[0]!.output ?? 'null'
  const isSmall = last.every(({ output }) => output === null || !isLinked(output))
  const made = isSmall ? objectOf(last.map(({ id, output }) => [id, output ?? 'null'])) : undefined
  return made !== undefined && made.length <= most ? made : undefined
}

export interface ConclusionDeps {
  readonly database: Database
  readonly outputs: Outputs
  readonly scopes: Scopes
  readonly evaluator: Evaluator
  readonly large: LargeTurns
}

/** How a run ends after all its nodes: with an output in stored form, or with an error. */
export type Conclusion = { readonly output: string } | { readonly error: Failure }

/** Makes the output of a run whose nodes have all ended. Does not lock the run and may be repeated. Rejects when a store cannot be reached. */
export async function conclude(deps: ConclusionDeps, key: RunKey, settings: RunSettings): Promise<Conclusion> {
  const large = deps.large.ticket(key.tenantId)
  try {
    const made = await madeOf(deps, key, settings, large)
    if (made.length > mostOutput) throw new ExpressionError('it is larger than 10 MiB')
    const { outputSchema } = settings
    const problem = outputSchema && (await deps.outputs.problem(key.tenantId, outputSchema, made))
    if (problem !== undefined) throw new ExpressionError(`it does not fit the outputSchema: ${problem}`)
    return { output: await deps.outputs.keep(key, made) }
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error
    const message = `The output of the workflow could not be made: ${error.message}.`
    return { error: { code: 'bad_output', message } }
  } finally {
    large.leave()
  }
}

async function madeOf(
  { database, outputs, scopes, evaluator }: ConclusionDeps,
  key: RunKey,
  { output }: RunSettings,
  large: ReturnType<LargeTurns['ticket']>,
): Promise<string> {
  if (output !== undefined) {
    const scope = await scopes.of(key, { texts: [output] }, large)
    return (await evaluator.render(key.tenantId, { output }, scope)).output
  }
  await large.enter()
  const last = await database.tenant(key.tenantId, (tx) => lastOutputs(tx, key))
  if (last.reduce((sum, one) => sum + sizeOf(one.output ?? ''), 0) > 4 * mostOutput) {
    throw new ExpressionError('it is larger than 10 MiB')
  }
  const read = async ({ output: stored }: LastOutput): Promise<string> =>
    stored === null ? 'null' : outputs.read(key, stored)
  if (last.length === 1) return read(last[0]!)
  const fields: [string, string][] = []
  for (const one of last) fields.push([one.id, await read(one)])
  return objectOf(fields)
}
const objectOf = (fields: readonly (readonly [string, string])[]): string =>
  `{${fields.map(([id, json]) => `${JSON.stringify(id)}:${json}`).join(',')}}`

/** The executed nodes of a run, in order; a single one comes with its output. `within`: no rows while more than this many nodes are unfinished. */
export const doneNodes = ({ tenantId, runId }: RunKey, within?: number): Statement => ({
  name: within === undefined ? 'workflow-done-nodes' : 'workflow-last-nodes',
  text: `SELECT id, CASE WHEN count(*) OVER () = 1 THEN output END AS output FROM workflow_nodes
         WHERE tenant_id = $1 AND run_id = $2 AND parent IS NULL AND status <> ${skipped}
           ${within === undefined ? '' : 'AND EXISTS (SELECT FROM workflow_runs WHERE tenant_id = $1 AND id = $2 AND unfinished <= $3)'}
         ORDER BY position`,
  values: [tenantId, runId, ...(within === undefined ? [] : [within])],
})

/**
 * The outputs of the executed nodes after which no other node was executed, in order. There is no join, because its plan took minutes before the
 * first ANALYZE.
 */
async function lastOutputs(tx: Tell, key: RunKey, known?: readonly LastOutput[]): Promise<readonly LastOutput[]> {
  const of = [key.tenantId, key.runId]
  const nodes = known ?? (await tx.query<LastOutput>(doneNodes(key)))
  if (nodes.length === 1) return nodes
  const edges = await tx.query<{ from_node: string; to_node: string }>({
    name: 'workflow-all-edges',
    text: 'SELECT from_node, to_node FROM workflow_edges WHERE tenant_id = $1 AND run_id = $2',
    values: of,
  })
  const done = new Set(nodes.map(({ id }) => id))
  const followed = new Set(edges.filter(({ to_node }) => done.has(to_node)).map(({ from_node }) => from_node))
  return tx.query<LastOutput>({
    name: 'workflow-last-outputs',
    text: `SELECT id, output FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND id = ANY ($3) ORDER BY position LIMIT 1000`,
    values: [...of, [...done].filter((id) => !followed.has(id))],
  })
}
