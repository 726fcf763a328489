import type { Database } from '#contracts/database'
import { ExpressionError, isTemplate, mentionedIn, type Scope, textsIn } from './expressions.ts'
import type { LargeTicket } from './large-turns.ts'
import { isLinked, type Outputs, type RunKey, sizeOf } from './outputs.ts'
import { nodeStatuses } from './schema.ts'
import { unknownRun } from './views.store.ts'

/** Attempts take turns to hold more bytes than this. See large-turns.ts. */
export const small = 256 * 1024
/** The most bytes that the expressions of one node may read. */
const most = 32 * 1024 * 1024

interface Wanted {
  /** Values with templates (`texts`), and conditions. */
  readonly texts: readonly unknown[]
  readonly conditions?: readonly string[]
  /** Further variables of the expressions: as values, and as JSON or links. */
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

/** Reads what the expressions of a node see of their run: only the nodes and the input that they name. */
export class Scopes {
  readonly #database: Database
  readonly #outputs: Outputs
  constructor(database: Database, outputs: Outputs) {
    this.#database = database
    this.#outputs = outputs
  }

  /** Rejects with ExpressionError when the expressions name more than 32 MiB, and with 410 `output_gone`. */
  async of(key: RunKey, { texts, conditions = [], values, json = {} }: Wanted, large: LargeTicket): Promise<Scope> {
    const used = [
      ...texts.flatMap((value) =>
        textsIn(value)
          .map(({ text }) => text)
          .filter(isTemplate)
          .toArray(),
      ),
      ...conditions,
    ]
    if (used.length === 0) return { json: {}, nodes: [] }
    const named = {
      ids: [...new Set(used.flatMap(mentionedIn))],
      input: used.some((text) => text.includes('input')),
    }
    // Parts of a map name little but their item, and there are thousands of them.
    const readsNothing = named.ids.length === 0 && !named.input && !used.some((text) => text.includes('run'))
    const found = readsNothing ? nothing : await this.#read(key, named, large)
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

  /** Reads a small scope at once. A large scope is read only when it is the attempt's turn. */
  async #read(key: RunKey, named: { ids: readonly string[]; input: boolean }, large: LargeTicket) {
    const found = await this.#stored(key, { ...named, most: small })
    const bytes = (named.input ? found.run.bytes : 0) + found.nodes.reduce((sum, one) => sum + one.bytes, 0)
    if (bytes <= small) return found
    if (bytes > most) throw tooMuch()
    await large.enter()
    return this.#stored(key, { ...named, most })
  }
  /** The input of the run and outputs of nodes in stored form. Each of the two is left out (null) if it has more than `most` bytes. */
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

const nothing = { run: { name: '', input: null, bytes: 0 }, nodes: [] } as const

const tooMuch = (): ExpressionError => new ExpressionError('what it names has more than 32 MiB together')

/** The variable that a map or loop gives to a part, as JSON: `item` or `previous`. A link is always the output of the previous part. */
export function itemOf(item: string | undefined): Readonly<Record<string, string>> {
  if (item === undefined) return {}
  if (isLinked(item)) return { previous: item }
  const [, name = 'item'] = /^\{"(item|previous)":/.exec(item) ?? []
  return { [name]: item.slice(name.length + 4, -1) }
}
