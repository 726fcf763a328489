import { randomBytes } from 'node:crypto'
import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Processes, Started } from './processes.ts'
import type { Chat, ModelName, Target, TargetName } from './targets.ts'

export interface ServiceContext {
  readonly processes: Processes
  readonly modelUrl: string
  readonly slowDeltas: number
  readonly profile: string | undefined
}

/** The highest limit an agent can have, in requests per minute and key: the limiter stays on and must not interfere. */
const rateLimitRpm = 100_000
/** So many keys per agent carry 26,000 chats a second. */
const keysPerAgent = 16
const models: readonly ModelName[] = ['burst-20', 'tick-20', 'burst-20000', 'slow']
const cli = new URL('../bin/agent-orc.js', import.meta.url).pathname
const config = (role: string): string => new URL(`../config/${role}.yaml`, import.meta.url).pathname

async function dataDirectory(processes: Processes): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'agent-orc-bench-'))
  processes.onStop(() => rm(directory, { recursive: true, force: true }))
  // PostgreSQL's socket folder is made beside its data, so both are inside what is removed.
  return join(directory, 'data')
}

async function profiling(directory: string | undefined, name: string): Promise<string[]> {
  if (directory === undefined) return []
  await mkdir(directory, { recursive: true })
  return ['--cpu-prof', `--cpu-prof-dir=${directory}`, `--cpu-prof-name=${name}.cpuprofile`]
}

const environment = (context: ServiceContext): Record<string, string> => ({
  OPENAI_BASE_URL: `${context.modelUrl}/v1`,
  OPENAI_API_KEY: 'stand-in',
  LOG_LEVEL: 'warn',
})

/** Single-process form, as `npm run dev` starts it, embedded PostgreSQL included. Started twice: the second boot counts. */
export async function startSingle(context: ServiceContext): Promise<Target> {
  const { processes } = context
  const data = await dataDirectory(processes)
  const args = [cli, 'dev', '--json', '--port', '0', '--data', data]
  await processes.stopOne((await processes.node(args, environment(context))).child)
  const began = performance.now()
  const { child, line } = await processes.node(
    [...(await profiling(context.profile, 'single')), ...args],
    environment(context),
  )
  const bootMs = performance.now() - began
  const ready = line as { conductorUrl: string; gatewayUrl: string; apiKey: string; agents: DevAgent[] }
  const agents = await publishAgents(ready.conductorUrl, ready.apiKey, context.slowDeltas)
  const [demo] = ready.agents
  return {
    ...gatewayTarget('single', ready.gatewayUrl, agents, bootMs),
    roots: () => [child.pid ?? 0],
    ...(demo
      ? { builtin: chatOf(ready.gatewayUrl, { path: new URL(demo.chatUrl).pathname, keys: [demo.key] }, false) }
      : {}),
  }
}

interface DevAgent {
  readonly chatUrl: string
  readonly key: string
}

/** Four-process form: one process per role, HTTP between them, in the order in which each needs the next. */
export async function startFour(context: ServiceContext): Promise<Target> {
  const { processes } = context
  const database = await processes.node([
    new URL('postgres.ts', import.meta.url).pathname,
    await dataDirectory(processes),
  ])
  const bootstrapKey = `bootstrap-${randomBytes(16).toString('hex')}`
  const env = {
    ...environment(context),
    POSTGRES_DSN: String(database.line.dsn),
    AGENT_API_KEY_PEPPER: randomBytes(32).toString('base64'),
    AGENT_ORC_BOOTSTRAP_KEY: bootstrapKey,
    CHAT_GATEWAY_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64'),
    GATEWAY_RATE_LIMIT_BACKEND: 'memory',
  }
  const started: Started[] = []
  const start = async (role: string, more: Record<string, string>): Promise<Record<string, string>> => {
    const args = [...(await profiling(context.profile, role)), cli, 'start', '--json', '--config', config(role)]
    const process = await processes.node(args, { ...env, ...more })
    started.push(process)
    return process.line.urls as Record<string, string>
  }
  const began = performance.now()
  const sidecar = await start('sidecar', { PORT: '0' })
  const runner = await start('runner', { RUNNER_PORT: '0', SIDECAR_URL: sidecar.sidecar ?? '' })
  const conductor = await start('conductor', { PORT: '0', INTERNAL_PORT: '0', RUNNER_URLS: runner.runner ?? '' })
  const gateway = await start('gateway', { PORT: '0', CONDUCTOR_INTERNAL_URL: conductor.internal ?? '' })
  const bootMs = performance.now() - began
  const agents = await publishAgents(conductor.conductor ?? '', bootstrapKey, context.slowDeltas)
  return {
    ...gatewayTarget('four', gateway.gateway ?? '', agents, bootMs),
    roots: () => started.map(({ child }) => child.pid ?? 0),
    postgresRoots: () => [database.child.pid ?? 0],
  }
}

interface Agent {
  readonly path: string
  readonly keys: readonly string[]
}

function gatewayTarget(
  name: TargetName,
  url: string,
  agents: ReadonlyMap<ModelName, Agent>,
  bootMs: number,
): Omit<Target, 'roots'> {
  return {
    name,
    bootMs,
    chat(model, sync) {
      const agent = agents.get(model)
      if (!agent) throw new Error(`no agent on ${model}`)
      return chatOf(url, agent, sync)
    },
  }
}

const chatOf = (origin: string, agent: Agent, sync: boolean): Chat => ({
  origin,
  requests: agent.keys.map((key) => ({
    path: sync ? agent.path : `${agent.path}/stream`,
    headers: { authorization: `Bearer ${key}` },
  })),
  body: JSON.stringify({ message: 'Hello' }),
  format: sync ? 'sync' : 'gateway',
})

/** One published agent without tools per model of the stand-in. */
async function publishAgents(conductorUrl: string, apiKey: string, slow: number): Promise<Map<ModelName, Agent>> {
  const post = async (path: string, body: unknown): Promise<Record<string, string>> => {
    const response = await fetch(`${conductorUrl}${path}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
    if (response.status !== 201) throw new Error(`POST ${path}: ${response.status} ${await response.text()}`)
    return (await response.json()) as Record<string, string>
  }
  const agents = new Map<ModelName, Agent>()
  for (const name of models) {
    const profile = `bench-${name}`
    await post('/api/profiles', { name: profile, model: `openai/${name === 'slow' ? `slow-${slow}` : name}` })
    const { slug } = await post(`/api/profiles/${profile}/publish`, { rateLimitRpm })
    const keys: string[] = []
    for (let i = 0; i < keysPerAgent; i++) {
      const { token } = await post(`/api/profiles/${profile}/keys`, { label: `bench ${i}` })
      keys.push(String(token))
    }
    agents.set(name, { path: `/v1/chat/default/${slug}`, keys })
  }
  return agents
}
