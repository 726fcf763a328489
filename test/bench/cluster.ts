import { randomBytes } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parse, stringify } from 'yaml'
import type { Processes, Started } from './processes.ts'

export type Role = 'sidecar' | 'runner' | 'conductor' | 'gateway'

export interface Member {
  /** `gateway`, or `gateway 2` where there are several. */
  readonly name: string
  readonly role: Role
  readonly process: Started
  readonly urls: Readonly<Record<string, string>>
}

/** One process per role or more, HTTP between them, on a PostgreSQL of their own. */
export interface Cluster {
  readonly members: readonly Member[]
  readonly dsn: string
  /** The key of the owner of tenant `default`. */
  readonly apiKey: string
  /** From the first role's spawn until the last one answers. */
  readonly bootMs: number
  readonly postgres: Started
  /** What every process was started with. */
  readonly env: Readonly<Record<string, string>>
  urls(role: 'conductor' | 'gateway'): string[]
  pids(): number[]
}

export interface ClusterOptions {
  readonly processes: Processes
  readonly env: Readonly<Record<string, string>>
  /** How many gateways and conductors: each gateway has its own conductor, as behind a fair balancer. One unless given. */
  readonly pairs?: number
  /** Without it every process counts and remembers for itself. */
  readonly redisUrl?: string
  /** Node's options before the script, e.g. to profile the process. */
  readonly nodeArgs?: (role: Role) => Promise<readonly string[]> | readonly string[]
  /** The checkout whose files are started; this one unless given. */
  readonly root?: string
  /** The role's file; the one in the checkout's `config/` unless given. */
  readonly config?: (role: Role) => string
  /** True to hold an IPC channel to each process, which `inspected.ts` answers on. */
  readonly ipc?: boolean
}

/** This checkout. */
export const here = fileURLToPath(new URL('../..', import.meta.url))
export const roleFile = (role: string, root = here): string => join(root, 'config', `${role}.yaml`)

type PluginSettings = Readonly<Record<string, unknown>>

/** Writes a role file like that of the checkout, in which a plugin has other settings as well. Resolves to its path. */
export async function changedRole(
  role: string,
  directory: string,
  plugin: string,
  change: (settings: PluginSettings) => PluginSettings,
): Promise<string> {
  const { plugins, ...rest } = parse(await readFile(roleFile(role), 'utf8')) as {
    plugins: Record<string, PluginSettings | null>
  }
  if (!(plugin in plugins)) throw new Error(`config/${role}.yaml has no plugin ${plugin}`)
  const settings = plugins[plugin] ?? {}
  const file = join(directory, `${role}.yaml`)
  await writeFile(file, stringify({ ...rest, plugins: { ...plugins, [plugin]: { ...settings, ...change(settings) } } }))
  return file
}

/** How a checkout's `npm start` or `npm run dev` calls it: Node's options, the script and its command. */
export function command(script: 'start' | 'dev', root = here): string[] {
  const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>
  }
  const [, ...words] = scripts[script]!.split(' ')
  return words.map((word) => (word.endsWith('.js') ? join(root, word) : word))
}

/** A checkout starts its own PostgreSQL. Before the benchmarks moved under `test/` the script lay one folder higher. */
export const postgresScript = (root: string): string =>
  ['test/bench', 'bench'].map((folder) => join(root, folder, 'postgres.ts')).find((file) => existsSync(file)) ??
  join(root, 'test/bench/postgres.ts')

export async function dataDirectory(processes: Processes): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'agent-orc-bench-'))
  processes.onStop(() => rm(directory, { recursive: true, force: true }))
  // PostgreSQL's socket folder is made beside its data, so both are inside what is removed.
  return join(directory, 'data')
}

export async function profiling(directory: string | undefined, name: string): Promise<string[]> {
  if (directory === undefined) return []
  await mkdir(directory, { recursive: true })
  return ['--cpu-prof', `--cpu-prof-dir=${directory}`, `--cpu-prof-name=${name}.cpuprofile`]
}

/** Starts the roles in the order in which each needs the next. */
export async function startCluster(options: ClusterOptions): Promise<Cluster> {
  const { processes, pairs = 1, redisUrl, nodeArgs, root = here } = options
  const config = options.config ?? ((role: Role) => roleFile(role, root))
  const postgres = await processes.node([postgresScript(root), await dataDirectory(processes)])
  const dsn = String(postgres.line['dsn'])
  const apiKey = `bootstrap-${randomBytes(16).toString('hex')}`
  const env = {
    ...options.env,
    POSTGRES_DSN: dsn,
    AGENT_API_KEY_PEPPER: randomBytes(32).toString('base64'),
    AGENT_ORC_BOOTSTRAP_KEY: apiKey,
    AGENT_ORC_OPERATIONS_PORT: '0',
    CHAT_GATEWAY_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64'),
    RUNNER_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64'),
    ...(redisUrl === undefined ? { GATEWAY_RATE_LIMIT_BACKEND: 'memory' } : { REDIS_URL: redisUrl }),
  }
  const members: Member[] = []
  const start = async (role: Role, number: number, more: Record<string, string>): Promise<Member['urls']> => {
    const args = [...((await nodeArgs?.(role)) ?? []), ...command('start', root)]
    const started = await processes.node(
      [...args, '--json', '--config', config(role)],
      {
        ...env,
        ...more,
      },
      options.ipc,
    )
    const urls = started.line['urls'] as Member['urls']
    members.push({ name: number === 1 ? role : `${role} ${number}`, role, process: started, urls })
    return urls
  }
  const began = performance.now()
  const sidecar = await start('sidecar', 1, { PORT: '0' })
  const runner = await start('runner', 1, {
    RUNNER_PORT: '0',
    AGENT_ORC_WORKER_PORT: '0',
    SIDECAR_URL: sidecar['sidecar'] ?? '',
  })
  for (let pair = 1; pair <= pairs; pair++) {
    const conductor = await start('conductor', pair, {
      PORT: '0',
      INTERNAL_PORT: '0',
      RUNNER_URLS: runner['runner'] ?? '',
    })
    await start('gateway', pair, { PORT: '0', CONDUCTOR_INTERNAL_URL: conductor['internal'] ?? '' })
  }
  return {
    members,
    dsn,
    apiKey,
    bootMs: performance.now() - began,
    postgres,
    env,
    urls: (role) => members.filter((member) => member.role === role).map(({ urls }) => urls[role] ?? ''),
    pids: () => members.map(({ process }) => process.child.pid ?? 0),
  }
}
