import { readFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Command, Option } from 'commander'
import { Value } from '@sinclair/typebox/value'
import { parse, stringify } from 'yaml'
import {
  DefinitionBody,
  type DefinitionInfo,
  type NodeBody,
  nodeStatuses,
  runStatuses,
} from '../plugins/workflows/schema.ts'
import { edgesOf } from '../plugins/workflows/graph.ts'
import { problemsOf } from '../plugins/workflows/validate.ts'
import { devData } from './dev-data.ts'
import { CliError, columns, type Terminal, terminalOf } from './terminal.ts'

interface Options {
  readonly url?: string
  readonly key?: string
  readonly data: string
  readonly input?: string
}

export function addWorkflows(program: Command): void {
  const workflows = program.command('workflow').description('workflows as files of YAML or JSON')
  const command = (usage: string, description: string): Command =>
    workflows
      .command(usage)
      .description(description)
      .argument('<file>', 'a definition: name and nodes')
      .option('--json', 'answer as JSON')
  command('validate', 'say everything that is wrong with a definition; profiles and tools only a server knows').action(
    async (file: string, _: object, self: Command) => validate(file, terminalOf(self)),
  )
  command('show', 'the nodes of a definition, in an order in which they may run').action(
    async (file: string, _: object, self: Command) => show(await definitionIn(file), terminalOf(self)),
  )
  const asking = (made: Command): Command =>
    made
      .addOption(new Option('--url <url>', 'conductor; default: the development server of --data').env('CONDUCTOR_URL'))
      .addOption(new Option('--key <key>', 'API key of the tenant').env('AGENT_ORC_API_KEY'))
      .option('--data <dir>', 'data directory of agent-orc dev', '.agent-orc')
  asking(command('run', 'run a definition, and follow it to its end'))
    .option('--input <json>', 'the input, as JSON', '{}')
    .action(async (file: string, options: Options, self: Command) =>
      run(await definitionIn(file), options, terminalOf(self)),
    )
  asking(command('import', 'store a definition')).action(async (file: string, options: Options, self: Command) => {
    const { id, version } = await store(await definitionIn(file), options)
    terminalOf(self).print({ id, version }, () => `stored as ${id}`)
  })
  asking(workflows.command('export').description('a stored definition as YAML'))
    .argument('<id>', 'as `import` says it, or GET /api/workflows/definitions')
    .action(async (id: string, options: Options, self: Command) => {
      const { id: _, version: __, createdAt: ___, updatedAt: ____, ...body } = await stored(id, options)
      terminalOf(self).write(stringify(body, { lineWidth: 0 }))
    })
}

const store = async (body: DefinitionBody, options: Options): Promise<DefinitionInfo> =>
  (await callerOf(options))('POST', '/api/workflows/definitions', body)
const stored = async (id: string, options: Options): Promise<DefinitionInfo> =>
  (await callerOf(options))('GET', `/api/workflows/definitions/${encodeURIComponent(id)}`)

async function definitionIn(file: string): Promise<DefinitionBody> {
  const found = await readDefinition(file)
  if (found.problems.length > 0) throw new CliError(sentences(file, found.problems))
  return found.body
}

type Problems = readonly { readonly path: string; readonly message: string }[]
const sentences = (file: string, problems: Problems): string =>
  [`${file} cannot be run:`, ...problems.map(({ path, message }) => `  ${path}: ${message}`)].join('\n')

async function readDefinition(file: string): Promise<{ body: DefinitionBody; problems: Problems }> {
  const text = await readFile(file, 'utf8').catch(() => {
    throw new CliError(`${file} cannot be read.`)
  })
  let body: unknown
  try {
    body = parse(text, { maxAliasCount: 100 })
  } catch (error) {
    throw new CliError(`${file} is neither YAML nor JSON: ${(error as Error).message.split('\n', 1)[0]}`)
  }
  const shape = [...Value.Errors(DefinitionBody, body)].map(({ path, message }) => ({
    path: path.slice(1) || file,
    message,
  }))
  if (shape.length > 0) return { body: body as DefinitionBody, problems: shape }
  return { body: body as DefinitionBody, problems: await problemsOf(body as DefinitionBody) }
}

async function validate(file: string, terminal: Terminal): Promise<void> {
  const { body, problems } = await readDefinition(file)
  const valid = problems.length === 0
  terminal.print({ file, valid, problems }, () =>
    valid ? `${file}: ${body.nodes.length} nodes, nothing is wrong with them.` : sentences(file, problems),
  )
  if (!valid) throw new CliError(`${file} has ${problems.length === 1 ? 'a problem' : `${problems.length} problems`}.`)
}

function show(body: DefinitionBody, terminal: Terminal): void {
  const edges = edgesOf(body.nodes)
  terminal.print(body, () => {
    const rows = inOrder(body.nodes, edges).map(({ id, type }) => {
      const before = [...(edges.get(String(id)) ?? [])]
      return [`  ${String(id)}`, String(type), before.length > 0 ? `after ${before.join(', ')}` : '']
    })
    return `${body.name}\n${columns(rows)}`
  })
}

function inOrder(nodes: readonly NodeBody[], edges: ReadonlyMap<string, ReadonlySet<string>>): NodeBody[] {
  const done = new Set<string>()
  const ordered: NodeBody[] = []
  for (let left = [...nodes]; left.length > 0;) {
    const ready = left.filter(({ id }) => [...(edges.get(String(id)) ?? [])].every((one) => done.has(one)))
    for (const { id } of ready) done.add(String(id))
    ordered.push(...ready)
    left = left.filter((node) => !ready.includes(node))
  }
  return ordered
}

interface Snapshot {
  readonly id: string
  readonly status: number
  readonly output?: unknown
  readonly error?: { readonly message: string }
  readonly nodes: readonly {
    readonly id: string
    readonly status: number
    readonly error?: { readonly message: string }
  }[]
}
const askEveryMs = 300

async function run(definition: DefinitionBody, options: Options, terminal: Terminal): Promise<void> {
  const ask = await callerOf(options)
  const { id } = await ask<{ id: string }>('POST', '/api/workflows/runs', {
    definition,
    input: inputOf(options.input ?? '{}'),
  })
  const seen = new Map<string, number>()
  for (;;) {
    const run = await ask<Snapshot>('GET', `/api/workflows/runs/${id}`)
    for (const node of run.nodes) {
      if (seen.get(node.id) === node.status || node.status < 2) continue
      seen.set(node.id, node.status)
      terminal.progress(`${node.id}: ${nodeStatuses[node.status]}${node.error ? ` (${node.error.message})` : ''}`)
    }
    const status = runStatuses[run.status]
    if (status === 'pending' || status === 'running') {
      await sleep(askEveryMs)
      continue
    }
    terminal.print(run, () => `${id} ${status}${run.output === undefined ? '' : `: ${JSON.stringify(run.output)}`}`)
    if (status !== 'completed') throw new CliError(`The run ${id} is ${status}. ${run.error?.message ?? ''}`)
    return
  }
}

function inputOf(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    throw new CliError('--input is not JSON.')
  }
}

async function callerOf({ url, key, data }: Options) {
  const local = url && key ? undefined : await devData(data).lastReady()
  const base = url ?? local?.conductorUrl
  const token = key ?? local?.apiKey
  if (!base || !token) throw new CliError('give --url and --key, or start agent-orc dev first', 2)
  return async <T>(method: string, path: string, body?: unknown): Promise<T> => {
    const answer = await fetch(new URL(path, base), {
      method,
      headers: {
        authorization: `Bearer ${token}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    const said = (await answer.json()) as T & { message?: string; issues?: Problems }
    if (answer.ok) return said
    throw new CliError(
      said.issues
        ? sentences('The definition', said.issues)
        : (said.message ?? `The server answered ${answer.status}.`),
    )
  }
}
