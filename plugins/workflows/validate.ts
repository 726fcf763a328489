import { setImmediate as turn } from 'node:timers/promises'
import type { TSchema } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { secretsIn } from '#contracts/secrets'
import type { Problem } from './errors.ts'
import { type Expression, expressionProblem, isTemplate, nodesIn, textsIn } from './expressions.ts'
import { type NodeOf, nodeSchemas, type NodeType, nodeTypes, type WorkflowNode } from './node.schema.ts'
import { type Definition, type DefinitionBody, type NodeBody } from './schema.ts'

/** Questions that only a server can answer. Absent ones are not asked: `agent-orc workflow validate` has no server. */
export interface Lookups {
  /** Each of these three resolves to the names or ids that do not exist. */
  profiles?(names: readonly string[]): Promise<readonly string[]>
  tools?(names: readonly string[]): Promise<readonly string[]>
  definitions?(ids: readonly string[]): Promise<readonly string[]>
  /** The problem of each expression. Slow checks happen where they hold up no other request. */
  expressions?(texts: readonly Expression[]): Promise<readonly (string | undefined)[]>
  /** Why a JSON Schema is invalid. Undefined: it is valid. */
  schema?(schema: Readonly<Record<string, unknown>>): Promise<string | undefined>
  /** Why a value does not match a JSON Schema. Undefined: it matches. */
  value?(schema: Readonly<Record<string, unknown>>, value: unknown): Promise<string | undefined>
}

/** How deep maps and loops may nest. */
const mostDepth = 4
/** The longest timeout in seconds of a call that a conductor executes itself. */
const mostCallSeconds = 3_600
/** At most this many problems are reported: nobody fixes a thousand at once. */
const mostProblems = 100

/** All problems of a definition, each with its path. Empty: the definition is valid. */
export async function problemsOf(body: DefinitionBody, lookups: Lookups = {}): Promise<Problem[]> {
  const found = new Findings()
  const known = new Set<string>()
  for (const [i, { id }] of body.nodes.entries()) {
    if (typeof id !== 'string') continue
    if (known.has(id)) found.add(`nodes/${i}/id`, `there is another node '${id}'`)
    known.add(id)
  }
  for (const [i, node] of body.nodes.entries()) {
    checkNode(node, `nodes/${i}`, found)
    if (i % 100 === 99) await turn()
  }
  await checkGraph(body.nodes, known, found)
  for (const { path, text } of textsIn(body.output)) {
    found.express({ text, path: path === '' ? 'output' : `output/${path}` })
    for (const id of nodesIn(text, (one) => known.has(one))) {
      if (!known.has(id)) found.add('output', `there is no node '${id}'`)
    }
  }
  await lookUp(body, found, lookups)
  return found.problems
}

/** Converts a body that has no problems to a definition. */
export const checkedDefinition = (body: DefinitionBody): Definition => body as unknown as Definition

/** All problems of one node by itself, or of the inner node of a map or loop. */
export async function nodeProblems({ id, ...node }: NodeBody, lookups: Lookups): Promise<Problem[]> {
  const found = new Findings()
  if (String(id).includes('.')) checkNode(node, 'node', found, 1)
  else checkNode({ id, ...node }, 'node', found)
  await found.lookUpNames(lookups)
  return found.problems
}

class Findings {
  readonly problems: Problem[] = []
  readonly profiles = new Map<string, string[]>()
  readonly tools = new Map<string, string[]>()
  readonly definitions = new Map<string, string[]>()
  readonly schemas: { readonly path: string; readonly schema: Readonly<Record<string, unknown>> }[] = []

  readonly #expressions: (Expression & { readonly path: string })[] = []

  express(one: Expression & { readonly path: string }): void {
    if (one.isCondition || isTemplate(one.text)) this.#expressions.push(one)
  }
  async #lookAtExpressions(lookups: Lookups): Promise<void> {
    const all = this.#expressions
    const problems = await (lookups.expressions?.(all) ?? all.map(expressionProblem))
    for (const [i, problem] of problems.entries()) if (problem) this.add(all[i]!.path, problem)
  }

  add(path: string, message: string): void {
    if (this.problems.length < mostProblems) this.problems.push({ path, message })
  }
  name(where: 'profiles' | 'tools' | 'definitions', name: string, path: string): void {
    this[where].set(name, [...(this[where].get(name) ?? []), path])
  }
  async lookUpNames(lookups: Lookups): Promise<void> {
    await this.#lookAtExpressions(lookups)
    for (const [kind, what] of [
      ['profiles', 'profile'],
      ['tools', 'tool'],
      ['definitions', 'workflow definition'],
    ] as const) {
      const names = [...this[kind].keys()]
      for (const name of (names.length > 0 && (await lookups[kind]?.(names))) || []) {
        for (const path of this[kind].get(name) ?? []) this.add(path, `there is no ${what} '${name}'`)
      }
    }
    for (const { path, schema } of this.schemas) {
      const problem = await lookups.schema?.(schema)
      if (problem) this.add(path, problem)
    }
  }
}

function checkNode(node: NodeBody, path: string, found: Findings, depth = 0): void {
  const { type } = node
  if (typeof type !== 'string' || !(nodeTypes as readonly string[]).includes(type)) {
    return found.add(`${path}/type`, `must be one of ${nodeTypes.join(', ')}`)
  }
  // The inner node of a map or loop has no id, but its schema needs one.
  const whole = depth === 0 ? node : { id: 'part', ...node }
  const schema = nodeSchemas[type as NodeType]
  if (!Value.Check(schema, whole)) {
    const said = new Set<string>()
    for (const { path: at, message, schema: expected } of Value.Errors(schema, whole)) {
      // Only the first error of a field is reported; the others follow from it.
      if (said.has(at)) continue
      said.add(at)
      found.add(`${path}${at}`, choicesOf(expected) ?? message.charAt(0).toLowerCase() + message.slice(1))
    }
    return
  }
  checkFields(whole as WorkflowNode, path, found, depth)
}

/** The allowed values of a field, if its schema is a choice between constants. */
function choicesOf({ anyOf }: TSchema): string | undefined {
  const values = ((anyOf ?? []) as TSchema[]).map((one) => one.const as unknown)
  return values.length > 0 && !values.includes(undefined) ? `must be one of ${values.join(', ')}` : undefined
}

function checkFields(node: WorkflowNode, path: string, found: Findings, depth: number): void {
  const { type } = node
  for (const [field, value] of Object.entries(node)) {
    if (!templated[type].includes(field)) continue
    for (const { path: inner, text } of textsIn(value)) {
      found.express({ text, path: [path, field, inner].filter(Boolean).join('/') })
    }
  }
  if (depth > 0 && node.dependsOn) found.add(`${path}/dependsOn`, 'a part depends on nothing')
  if (depth > 0 && branchesOf(node).length > 0) found.add(path, 'a part has neither `then` nor `else`')
  if (type === 'http') checkSecrets(node, path, found)
  if (type === 'map' && typeof node.items === 'string' && !isTemplate(node.items))
    found.add(`${path}/items`, `a text is no array: a template makes one, such as {{ ${node.items.slice(0, 100)} }}`)
  if (type === 'agent') found.name('profiles', node.profile, `${path}/profile`)
  if (type === 'tool') found.name('tools', node.tool, `${path}/tool`)
  if (type === 'workflow') found.name('definitions', node.workflowDefinitionId, `${path}/workflowDefinitionId`)
  if (type === 'agent' && node.responseFormat)
    found.schemas.push({ path: `${path}/responseFormat/schema`, schema: node.responseFormat.schema })
  if (type === 'condition' && typeof node.if === 'string')
    found.express({ text: node.if, path: `${path}/if`, isCondition: true })
  if (type === 'loop') found.express({ text: node.until, path: `${path}/until`, isCondition: true })
  if (type === 'wait' && [node.seconds, node.until, node.signal].every((one) => one === undefined)) {
    found.add(path, 'a wait has `seconds`, `until` or `signal`')
  }
  if (type === 'wait' && node.seconds !== undefined && node.until !== undefined) {
    found.add(`${path}/until`, 'a wait has `seconds` or `until`, not both')
  }
  if ((type === 'tool' || type === 'http') && (node.timeoutSeconds ?? 0) > mostCallSeconds) {
    found.add(`${path}/timeoutSeconds`, `a call takes at most ${mostCallSeconds} seconds`)
  }
  if (node.timeoutSeconds !== undefined && !['agent', 'tool', 'http', 'workflow'].includes(type)) {
    found.add(`${path}/timeoutSeconds`, `a node of type ${type} has no timeout`)
  }
  if (node.outputSchema) {
    if (['condition', 'wait', 'approval'].includes(type)) {
      found.add(`${path}/outputSchema`, `a node of type ${type} has no outputSchema`)
    } else found.schemas.push({ path: `${path}/outputSchema`, schema: node.outputSchema })
  }
  if (node.concurrencyLimit !== undefined && node.concurrencyKey === undefined) {
    found.add(`${path}/concurrencyLimit`, 'it needs a `concurrencyKey`')
  }
  if (type === 'map' || type === 'loop') {
    if (depth >= mostDepth) found.add(`${path}/node`, `maps and loops are at most ${mostDepth} deep`)
    else checkNode(node.node as NodeBody, `${path}/node`, found, depth + 1)
  }
}

/** The author of a node decides which secrets go to which host. Neither may come from an input or from the answer of an agent. */
function checkSecrets({ url, headers = {} }: NodeOf<'http'>, path: string, found: Findings): void {
  const referring = Object.entries(headers).filter(([, text]) => text.includes('secret://'))
  for (const [name, text] of referring) {
    try {
      secretsIn(text)
    } catch {
      found.add(
        `${path}/headers/${name}`,
        'a reference is secret:// and the name of a secret, which no template can make',
      )
    }
  }
  if (referring.length > 0 && !/^https?:\/\/[^\s/?#{}@\\]+([/?#]|$)/i.test(url))
    found.add(`${path}/url`, 'an address that is sent a secret has its host written out: templates may stand behind it')
}
/** Whether a node, or a part of it, sends secrets somewhere. */
export function sendsSecrets(body: NodeBody): boolean {
  const { headers, node } = body as { readonly headers?: object; readonly node?: NodeBody }
  return (
    Object.values(headers ?? {}).some((text) => String(text).includes('secret://')) || (!!node && sendsSecrets(node))
  )
}

/** The fields in which texts are templates. */
export const templated: Readonly<Record<NodeType, readonly string[]>> = {
  agent: ['prompt', 'sessionId', 'metadata'],
  tool: ['arguments'],
  condition: [],
  map: ['items'],
  loop: [],
  wait: ['seconds', 'until'],
  approval: ['message'],
  workflow: ['input'],
  http: ['url', 'headers', 'body'],
}

/** The nodes in the branches of a condition. It skips those of the branch that is not taken. */
export function branchesOf(node: NodeBody | WorkflowNode): string[] {
  const { then, else: otherwise } = node as { then?: unknown; else?: unknown }
  return node.type === 'condition' ? [...textsOf(then), ...textsOf(otherwise)] : []
}

/** The dependencies of each node, including those that a condition adds by naming a node as a branch. */
export function edgesOf(nodes: readonly NodeBody[]): Map<string, Set<string>> {
  const edges = new Map<string, Set<string>>()
  for (const { id, dependsOn } of nodes) {
    if (typeof id === 'string') edges.set(id, new Set(textsOf(dependsOn)))
  }
  for (const node of nodes) {
    if (typeof node.id === 'string') for (const branch of branchesOf(node)) edges.get(branch)?.add(node.id)
  }
  return edges
}

const textsOf = (list: unknown): string[] =>
  Array.isArray(list) ? list.filter((one): one is string => typeof one === 'string') : []

async function checkGraph(nodes: readonly NodeBody[], known: ReadonlySet<string>, found: Findings): Promise<void> {
  for (const [i, node] of nodes.entries()) {
    for (const field of ['dependsOn', 'then', 'else'] as const) {
      for (const [j, id] of textsOf((node as Readonly<Record<string, unknown>>)[field]).entries()) {
        if (!known.has(id)) found.add(`nodes/${i}/${field}/${j}`, `there is no node '${id}'`)
        else if (field !== 'dependsOn' && id === node.id) found.add(`nodes/${i}/${field}/${j}`, 'it names itself')
      }
    }
  }
  const edges = edgesOf(nodes)
  const cycle = cycleIn(edges)
  if (cycle) {
    const at = nodes.findIndex(({ id }) => id === cycle[0])
    return found.add(`nodes/${at}/dependsOn`, `the dependencies form a circle: ${cycle.join(' -> ')}`)
  }
  const { isBefore, isTired } = ancestryIn(edges)
  for (const [i, node] of nodes.entries()) {
    if (i % 100 === 99 || isTired()) await turn()
    if (typeof node.id !== 'string') continue
    for (const { path, text } of textsIn(node)) {
      for (const id of new Set(nodesIn(text, (one) => known.has(one)))) {
        if (!known.has(id)) found.add(`nodes/${i}/${path}`, `there is no node '${id}'`)
        else if (!isBefore(node.id, id)) {
          found.add(`nodes/${i}/${path}`, `'${id}' is not before it: add it to \`dependsOn\``)
        }
      }
    }
  }
}

/** The nodes of a cycle, with the first one again at the end. Undefined: there is no cycle. No recursion, since 10,000 nodes may be a chain. */
export function cycleIn(edges: ReadonlyMap<string, ReadonlySet<string>>): string[] | undefined {
  const done = new Set<string>()
  for (const start of edges.keys()) {
    if (done.has(start)) continue
    const path: string[] = [start]
    const on = new Set(path)
    const left = [[...(edges.get(start) ?? [])]]
    while (path.length > 0) {
      const next = left.at(-1)!.pop()
      if (next === undefined) {
        left.pop()
        const last = path.pop()!
        on.delete(last)
        done.add(last)
      } else if (on.has(next)) {
        // Edges point from a node to its dependencies. People read a cycle from the first node to run, so it is reversed.
        return [...path.slice(path.indexOf(next)), next].reverse()
      } else if (!done.has(next) && edges.has(next)) {
        path.push(next)
        on.add(next)
        left.push([...edges.get(next)!])
      }
    }
  }
  return undefined
}

/** How many steps all ancestor searches may take together. Beyond that, references are accepted unchecked. */
const mostSteps = 1_000_000

/** After this many steps the event loop gets a turn. */
const stepsAtOnce = 20_000

/** Tells whether a node comes before another one in a graph without cycles. Direct dependencies are checked first, since most references are to one. */
function ancestryIn(edges: ReadonlyMap<string, ReadonlySet<string>>) {
  let steps = 0
  let rested = 0
  const isBefore = (id: string, before: string): boolean => {
    if (edges.get(id)?.has(before)) return true
    const seen = new Set<string>()
    const open = [...(edges.get(id) ?? [])]
    for (let one = open.pop(); one !== undefined; one = open.pop()) {
      if (one === before || ++steps > mostSteps) return true
      if (seen.has(one)) continue
      seen.add(one)
      open.push(...(edges.get(one) ?? []))
    }
    return false
  }
  const isTired = (): boolean => {
    if (steps - rested < stepsAtOnce) return false
    rested = steps
    return true
  }
  return { isBefore, isTired }
}

async function lookUp(body: DefinitionBody, found: Findings, lookups: Lookups): Promise<void> {
  for (const field of ['inputSchema', 'outputSchema'] as const) {
    const schema = body[field]
    if (schema) found.schemas.push({ path: field, schema })
  }
  await found.lookUpNames(lookups)
}
