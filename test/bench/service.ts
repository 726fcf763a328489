import { type Agent, publishAgent } from './agents.ts'
import { command, dataDirectory, profiling, startCluster } from './cluster.ts'
import type { Processes } from './processes.ts'
import type { Chat, Form, ModelName, Target, TargetName } from './targets.ts'

export interface ServiceContext {
  readonly processes: Processes
  readonly modelUrl: string
  readonly slowDeltas: number
  readonly profile: string | undefined
  /** The checkout that this one is measured against; absent: this one. Only what the target itself is made of comes from it. */
  readonly there?: string
}

const nameOf = (form: Form, { there }: ServiceContext): TargetName => (there === undefined ? form : `${form} there`)

const models: readonly ModelName[] = ['burst-20', 'tick-20', 'burst-20000', 'slow']

export const environment = (modelUrl: string): Record<string, string> => ({
  OPENAI_BASE_URL: `${modelUrl}/v1`,
  OPENAI_API_KEY: 'stand-in',
  LOG_LEVEL: 'warn',
  // All load is one tenant's.
  AGENT_ORC_LIMIT_READS: '100000000',
  AGENT_ORC_LIMIT_WRITES: '100000000',
  AGENT_ORC_LIMIT_CHATS: '100000000',
  AGENT_ORC_LIMIT_RUNNING_RUNS: '100000',
  AGENT_ORC_LIMIT_OPEN_STREAMS: '100000',
})

/** The tenant of development may operate the installation, and sends and fetches as fast as it can: the limit would be what is measured. */
export const operating = { AGENT_ORC_ADMIN_TENANT: 'default' }
export async function liftTransferLimit(conductorUrl: string, apiKey: string): Promise<void> {
  const { status } = await fetch(`${conductorUrl}/api/tenants/default`, {
    method: 'PATCH',
    headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' },
    body: JSON.stringify({ limits: { transferBytesPerMinute: Number.MAX_SAFE_INTEGER } }),
  })
  if (status !== 200) throw new Error(`the limit of transfers was not lifted: ${status}`)
}

/** Single-process form, as `npm run dev` starts it, embedded PostgreSQL included. Started twice: the second boot counts. */
export async function startSingle(context: ServiceContext): Promise<Target> {
  const { processes } = context
  const env = environment(context.modelUrl)
  const data = await dataDirectory(processes)
  const args = [...command('dev', context.there), '--json', '--port', '0', '--data', data]
  await processes.stopOne((await processes.node(args, env)).child)
  const began = performance.now()
  const { child, line } = await processes.node(
    [...(await profiling(context.profile, nameOf('single', context).replace(' ', '-'))), ...args],
    env,
  )
  const bootMs = performance.now() - began
  const ready = line as { conductorUrl: string; gatewayUrl: string; apiKey: string; agents: DevAgent[] }
  const agents = await publishAgents(ready.conductorUrl, ready.apiKey, context.slowDeltas)
  const [demo] = ready.agents
  return {
    name: nameOf('single', context),
    bootMs,
    chat: chatsOf([ready.gatewayUrl], agents),
    roots: () => [child.pid ?? 0],
    ...(demo
      ? { builtin: chatOf([ready.gatewayUrl], { path: new URL(demo.chatUrl).pathname, keys: [demo.key] }, false) }
      : {}),
  }
}

interface DevAgent {
  readonly chatUrl: string
  readonly key: string
}

/** Four-process form: one process per role. */
export async function startFour(context: ServiceContext): Promise<Target> {
  const cluster = await startCluster({
    processes: context.processes,
    env: environment(context.modelUrl),
    ...(context.there === undefined ? {} : { root: context.there }),
    nodeArgs: (role) => profiling(context.profile, context.there === undefined ? role : `${role}-there`),
  })
  const agents = await publishAgents(cluster.urls('conductor')[0] ?? '', cluster.apiKey, context.slowDeltas)
  return {
    name: nameOf('four', context),
    bootMs: cluster.bootMs,
    chat: chatsOf(cluster.urls('gateway'), agents),
    roots: () => cluster.pids(),
    postgresRoots: () => [cluster.postgres.child.pid ?? 0],
  }
}

const chatsOf =
  (urls: readonly string[], agents: ReadonlyMap<ModelName, Agent>): Target['chat'] =>
  (model, sync) => {
    const agent = agents.get(model)
    if (!agent) throw new Error(`no agent on ${model}`)
    return chatOf(urls, agent, sync)
  }

/** Requests with each key at each gateway, so that clients are spread over both. */
export const chatOf = (urls: readonly string[], agent: Pick<Agent, 'path' | 'keys'>, sync: boolean): Chat => ({
  requests: agent.keys.flatMap((key) =>
    urls.map((origin) => ({
      origin,
      path: sync ? agent.path : `${agent.path}/stream`,
      headers: { authorization: `Bearer ${key}` },
    })),
  ),
  body: JSON.stringify({ message: 'Hello' }),
  format: sync ? 'sync' : 'gateway',
})

/** One published agent per model of the stand-in. */
async function publishAgents(conductorUrl: string, apiKey: string, slow: number): Promise<Map<ModelName, Agent>> {
  const agents = new Map<ModelName, Agent>()
  for (const name of models) {
    agents.set(name, await publishAgent(conductorUrl, apiKey, name === 'slow' ? `slow-${slow}` : name))
  }
  return agents
}
