import type { Database } from '#contracts/database'
import { ExpressionError, isTemplate, mentionedIn, type Scope, textsIn } from './expressions.ts'
import type { LargeTicket } from './large-turns.ts'
import { isLinked, type Outputs, type RunKey, sizeOf } from './outputs.ts'
import { nodeStatuses } from './schema.ts'
import { unknownRun } from './views.store.ts'

/** More bytes than these are held by turns. */
export const small = 256 * 1024
/** All that expressions of a node may see, in bytes. */
const most = 32 * 1024 * 1024

interface Wanted {
  /** Values with templates, and conditions. */
  readonly texts: readonly unknown[]
  readonly conditions?: readonly string[]
  /** What else they see. */
  readonly values?: Scope['values']
  readonly json?: Scope['json']
}

interface ScopeNode {
  readonly id: string
  readonly status: number
  readonly output: string | null
  readonly error: string | null
  readonly bytes: number
}

/** What expressions see of a run: only what they name is read. */
export class Scopes {
  readonly #database: Database
  readonly #outputs: Outputs
  constructor(database: Database, outputs: Outputs) {
    this.#database = database
    this.#outputs = outputs
  }

  /** Rejects with ExpressionError where they name too much, and with 410 `output_gone`. */
  async of(key: RunKey, { texts, conditions = [], values, json = {} }: Wanted, large: LargeTicket): Promise<Scope> {
    const used = [
      ...texts.flatMap((value) => [...textsIn(value)].map(({ text }) => text).filter(isTemplate)),
      ...conditions,
    ]
    if (used.length === 0) return { json: {}, nodes: [] }
    const named = {
      ids: [...new Set(used.flatMap(mentionedIn))],
      input: used.some((text) => text.includes('input')),
    }
    const found = await this.#read(key, named, large)
    const stored = [...found.nodes.map(({ output }) => output), ...Object.values(json)].filter((one) => one !== null)
    const bytes = stored.reduce((sum, one) => sum + sizeOf(one), found.run.input?.length ?? 0)
    if (bytes > most) throw tooMuch()
    if (bytes > small) await large.enter()
    const whole = (one: string): Promise<string> => this.#outputs.read(key, one)
    const nodes: Scope['nodes'][number][] = []
    for (const { id, status, output, error } of found.nodes) {
      nodes.push({ id, status: nodeStatuses[status]!, output: output === null ? null : await whole(output), error })
    }
    const given: Record<string, string> = {}
    for (const [name, one] of Object.entries(json)) given[name] = isLinked(one) ? await whole(one) : one
    if (found.run.input !== null) given['input'] = found.run.input
    return { json: given, values: { run: { id: key.runId, name: found.run.name }, ...values }, nodes }
  }

  /** What has much is read when it is its turn. */
  async #read(key: RunKey, named: { ids: readonly string[]; input: boolean }, large: LargeTicket) {
    const found = await this.#stored(key, { ...named, most: small })
    const bytes = (named.input ? found.run.bytes : 0) + found.nodes.reduce((sum, one) => sum + one.bytes, 0)
    if (bytes <= small) return found
    if (bytes > most) throw tooMuch()
    await large.enter()
    return this.#stored(key, { ...named, most })
  }
  /** Its input and outputs as they are stored, where each of both has `most` bytes at most. */
  async #stored(
    { tenantId, runId }: RunKey,
    { ids, input, most }: { readonly ids: readonly string[]; readonly input: boolean; readonly most: number },
  ): Promise<{
    run: { readonly name: string; readonly input: string | null; readonly bytes: number }
    nodes: readonly ScopeNode[]
  }> {
    const [[run], nodes] = await this.#database.batch<
      [{ name: string; input: string | null; bytes: number }[], ScopeNode[]]
    >(tenantId, [
      {
        name: 'workflow-scope',
        text: `SELECT name, octet_length(input) AS bytes, CASE WHEN $3::boolean AND octet_length(input) <= $4::int THEN input END AS input
               FROM workflow_runs WHERE tenant_id = $1 AND id = $2`,
        values: [tenantId, runId, input, most],
      },
      {
        name: 'workflow-scope-nodes',
        text: `SELECT id, status, error, coalesce(octet_length(output), 0) AS bytes,
                 CASE WHEN sum(octet_length(output)) OVER () <= $4::int THEN output END AS output
               FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 AND id = ANY ($3)`,
        values: [tenantId, runId, ids, most],
      },
    ])
    if (!run) throw unknownRun()
    return { run, nodes }
  }
}

const tooMuch = (): ExpressionError => new ExpressionError('what it names has more than 32 MiB together')

/** What a map or loop gives a part of it, as JSON; what a link stands for is the output of the part before. */
export function itemOf(item: string | undefined): Readonly<Record<string, string>> {
  if (item === undefined) return {}
  if (isLinked(item)) return { previous: item }
  const [, name = 'item'] = /^\{"(item|previous)":/.exec(item) ?? []
  return { [name]: item.slice(name.length + 4, -1) }
}
