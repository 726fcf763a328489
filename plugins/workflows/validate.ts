import { setImmediate as turn } from 'node:timers/promises'
import type { TSchema } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { mostSecretsOfHost } from '#contracts/egress'
import { secretsIn } from '#contracts/secrets'
import type { Problem } from './errors.ts'
import { type Expression, expressionProblem, isTemplate, longest, nodesIn, textsIn } from './expressions.ts'
import { branchesOf, countEdges, cycleIn, edgesOf, mostEdges, nodesBefore, textsOf } from './graph.ts'
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

/** All problems of a definition, each with its path. Empty: the definition is valid. Whoever else has requests has turns in between. */
export async function problemsOf(body: DefinitionBody, lookups: Lookups = {}): Promise<Problem[]> {
  const edges = countEdges(body.nodes)
  if (edges > mostEdges) {
    const message = `a workflow has at most ${mostEdges} dependencies, and these are ${edges}: all of \`dependsOn\`, \`then\` and \`else\` count`
    return [{ path: 'nodes', message }]
  }
  const found = new Findings()
  const known = new Set<string>()
  for (const [i, { id }] of body.nodes.entries()) {
    if (typeof id !== 'string') continue
    if (known.has(id)) found.add(`nodes/${i}/id`, `there is another node '${id}'`)
    known.add(id)
  }
  for (const [i, node] of body.nodes.entries()) {
    if (found.isFull) break
    await checkNode(node, { path: `nodes/${i}`, depth: 0, top: node.id }, found)
  }
  await found.express(body.output, 'output')
  await checkGraph(body.nodes, known, found)
  await lookUp(body, found, lookups)
  return found.problems
}

/** Converts a body that has no problems to a definition. */
export const checkedDefinition = (body: DefinitionBody): Definition => body as unknown as Definition

/** All problems of one node by itself, or of the inner node of a map or loop. */
export async function nodeProblems({ id, ...node }: NodeBody, lookups: Lookups): Promise<Problem[]> {
  const found = new Findings()
  if (String(id).includes('.')) await checkNode(node, { path: 'node', depth: 1, top: id }, found)
  else await checkNode({ id, ...node }, { path: 'node', depth: 0, top: id }, found)
  await found.lookUpNames(lookups)
  return found.problems
}

/** About as many steps take a few milliseconds. Then others have their turn. */
const stepsAtOnce = 200_000
/** What a text takes besides its characters, and a node besides its texts. */
const stepsOfText = 20
const stepsOfNode = 1_000

/** Where a node is: its path, how deep in maps and loops, and the id of the node of the workflow that it is, or is a part of. */
interface Place {
  readonly path: string
  readonly depth: number
  readonly top: unknown
}

/** A template or condition in a definition. `top` is that of its node, and absent in the output of the workflow. */
interface Expressed extends Expression {
  readonly path: string
  readonly top?: unknown
}

class Findings {
  readonly problems: Problem[] = []
  readonly expressions: Expressed[] = []
  readonly profiles = new Map<string, string[]>()
  readonly tools = new Map<string, string[]>()
  readonly definitions = new Map<string, string[]>()
  readonly schemas: { readonly path: string; readonly schema: Readonly<Record<string, unknown>> }[] = []
  #steps = 0

  /** Counts work. Resolves when it may go on; undefined: at once. */
  worked(steps: number): Promise<void> | undefined {
    this.#steps += steps
    if (this.#steps < stepsAtOnce) return undefined
    this.#steps = 0
    return turn()
  }
  get isFull(): boolean {
    return this.problems.length >= mostProblems
  }

  /** Remembers the templates in a value. */
  async express(value: unknown, path: string, top?: unknown): Promise<void> {
    for (const { path: inner, text } of textsIn(value)) {
      const rest = this.worked(stepsOfText + text.length)
      if (rest) await rest
      if (isTemplate(text)) this.expressions.push({ text, path: inner === '' ? path : `${path}/${inner}`, top })
    }
  }
  async #lookAtExpressions(lookups: Lookups): Promise<void> {
    const all = this.expressions
    const problems = await (lookups.expressions?.(all) ?? all.map(expressionProblem))
    for (const [i, problem] of problems.entries()) if (problem) this.add(all[i]!.path, problem)
  }

  add(path: string, message: string): void {
    if (!this.isFull) this.problems.push({ path, message })
  }
  name(where: 'profiles' | 'tools' | 'definitions', name: string, path: string): void {
    const paths = this[where].get(name)
    if (paths) paths.push(path)
    else this[where].set(name, [path])
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

async function checkNode(node: NodeBody, place: Place, found: Findings): Promise<void> {
  const { type } = node
  const { path } = place
  if (typeof type !== 'string' || !(nodeTypes as readonly string[]).includes(type)) {
    return found.add(`${path}/type`, `must be one of ${nodeTypes.join(', ')}`)
  }
  const schema = nodeSchemas[type as NodeType]
  const entries = checkLengths(node, schema, path, found)
  if (entries === undefined) return
  // The inner node of a map or loop has no id, but its schema needs one.
  const whole = place.depth === 0 ? node : { id: 'part', ...node }
  await found.worked(stepsOfNode + stepsOfText * entries)
  if (!Value.Check(schema, whole)) {
    const said = new Set<string>()
    for (const { path: at, message, schema: expected } of Value.Errors(schema, whole)) {
      if (found.isFull) return
      // Only the first error of a field is reported; the others follow from it.
      if (said.has(at)) continue
      said.add(at)
      found.add(`${path}${at}`, choicesOf(expected) ?? message.charAt(0).toLowerCase() + message.slice(1))
    }
    return
  }
  await checkFields(whole as WorkflowNode, place, found)
}

/** No type has half as many. */
const mostFields = 50

/**
 * How many entries the lists of a node have together. Undefined: one has too many, and nobody looks at them one by one. The check by the schema would,
 * whatever it found before.
 */
function checkLengths(node: NodeBody, { properties }: TSchema, path: string, found: Findings): number | undefined {
  let all = Object.keys(node).length
  if (all > mostFields) {
    found.add(path, `has at most ${mostFields} fields, and these are ${all}`)
    return undefined
  }
  for (const [field, { maxItems, maxProperties }] of Object.entries(properties as Record<string, TSchema>)) {
    const value = (node as Readonly<Record<string, unknown>>)[field]
    const most: number | undefined = Array.isArray(value) ? maxItems : maxProperties
    if (most === undefined || typeof value !== 'object' || value === null) continue
    const { length } = Array.isArray(value) ? value : Object.keys(value)
    all += length
    if (length <= most) continue
    found.add(`${path}/${field}`, `has at most ${most} entries, and these are ${length}`)
    return undefined
  }
  return all
}

/** The allowed values of a field, if its schema is a choice between constants. */
function choicesOf({ anyOf }: TSchema): string | undefined {
  const values = ((anyOf ?? []) as TSchema[]).map((one) => one.const as unknown)
  return values.length > 0 && !values.includes(undefined) ? `must be one of ${values.join(', ')}` : undefined
}

async function checkFields(node: WorkflowNode, { path, depth, top }: Place, found: Findings): Promise<void> {
  const { type } = node
  for (const [field, value] of Object.entries(node)) {
    if (templated[type].includes(field)) await found.express(value, `${path}/${field}`, top)
  }
  for (const field of ['dependsOn', 'then', 'else'] as const) {
    const ids = textsOf((node as Readonly<Record<string, unknown>>)[field])
    if (new Set(ids).size < ids.length) found.add(`${path}/${field}`, 'expected array elements to be unique')
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
    found.expressions.push({ text: node.if, path: `${path}/if`, isCondition: true, top })
  if (type === 'loop') found.expressions.push({ text: node.until, path: `${path}/until`, isCondition: true, top })
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
    else await checkNode(node.node as NodeBody, { path: `${path}/node`, depth: depth + 1, top }, found)
  }
}

/** The author of a node decides which secrets go to which host. Neither may come from an input or from the answer of an agent. */
function checkSecrets({ url, headers = {} }: NodeOf<'http'>, path: string, found: Findings): void {
  const referring = Object.entries(headers).filter(([, text]) => text.includes('secret://'))
  const secrets = new Set<string>()
  for (const [name, text] of referring) {
    try {
      for (const secret of secretsIn(text)) secrets.add(secret)
    } catch {
      found.add(
        `${path}/headers/${name}`,
        'a reference is secret:// and the name of a secret, which no template can make',
      )
    }
  }
  if (secrets.size > mostSecretsOfHost)
    found.add(`${path}/headers`, `refers to at most ${mostSecretsOfHost} secrets, and these are ${secrets.size}`)
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

/** How many steps all searches for what comes before a node may take together. Beyond that, references are accepted unchecked. */
const mostSteps = 1_000_000

async function checkGraph(nodes: readonly NodeBody[], known: ReadonlySet<string>, found: Findings): Promise<void> {
  if (found.isFull) return
  for (const [i, node] of nodes.entries()) {
    for (const field of ['dependsOn', 'then', 'else'] as const) {
      for (const [j, id] of textsOf((node as Readonly<Record<string, unknown>>)[field]).entries()) {
        if (!known.has(id)) found.add(`nodes/${i}/${field}/${j}`, `there is no node '${id}'`)
        else if (field !== 'dependsOn' && id === node.id) found.add(`nodes/${i}/${field}/${j}`, 'it names itself')
      }
    }
  }
  const edges = edgesOf(nodes)
  await found.worked(stepsOfText * nodes.length)
  const cycle = cycleIn(edges)
  if (cycle) {
    const at = nodes.findIndex(({ id }) => id === cycle[0])
    return found.add(`nodes/${at}/dependsOn`, `the dependencies form a circle: ${cycle.join(' -> ')}`)
  }
  let left = mostSteps
  let searched = 0
  let before: { readonly id: string; readonly all: ReadonlySet<string> } | undefined
  const isBefore = (id: string, one: string): boolean => {
    // Most references are to a direct dependency. References of one node stand one behind the other.
    if (edges.get(id)?.has(one) || left < 0) return true
    if (before?.id !== id) {
      before = { id, all: nodesBefore(edges, id) }
      left -= before.all.size
      searched += stepsOfText * before.all.size
    }
    return before.all.has(one)
  }
  for (const { path, text, top } of found.expressions) {
    const rest = found.worked(stepsOfText + text.length + searched)
    searched = 0
    if (rest) await rest
    // What is too long is refused by itself.
    if (found.isFull || text.length > longest) continue
    for (const id of new Set(nodesIn(text, (one) => known.has(one)))) {
      if (!known.has(id)) found.add(path, `there is no node '${id}'`)
      else if (typeof top === 'string' && !isBefore(top, id))
        found.add(path, `'${id}' is not before it: add it to \`dependsOn\``)
    }
  }
}

async function lookUp(body: DefinitionBody, found: Findings, lookups: Lookups): Promise<void> {
  for (const field of ['inputSchema', 'outputSchema'] as const) {
    const schema = body[field]
    if (schema) found.schemas.push({ path: field, schema })
  }
  await found.lookUpNames(lookups)
}
