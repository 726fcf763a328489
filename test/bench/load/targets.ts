import type { ChildProcess } from 'node:child_process'
import { type Agent, issueKey, publishAgent } from '../agents.ts'
import { inspectable } from '../inspector.ts'
import { type Cluster, startCluster } from '../cluster.ts'
import type { Processes } from '../processes.ts'
import { chatOf, environment } from '../service.ts'
import { type ModelName, openaiTarget, type Target } from '../targets.ts'

export interface Watched {
  /** `gateway`, `conductor 2`, `postgres`. */
  readonly name: string
  readonly child: ChildProcess
}

/** Something that answers chats, with its processes for measuring each of them. */
export interface LoadTarget extends Target<string> {
  readonly processes: readonly Watched[]
  /** Where runs are started directly; absent for the proxy, which starts none. */
  readonly runs?: { readonly urls: readonly string[]; readonly profile: string; readonly key: string }
}

/** Client -> proxy -> proxy -> model, each hop its own process. */
export async function startProxy(processes: Processes, modelUrl: string): Promise<LoadTarget> {
  const began = performance.now()
  const script = new URL('../proxy.ts', import.meta.url).pathname
  const inner = await processes.node([...inspectable, script, modelUrl], {}, true)
  const outer = await processes.node([...inspectable, script, String(inner.line['url'])], {}, true)
  return {
    ...openaiTarget('proxy', String(outer.line['url']), [outer.child, inner.child], 0, performance.now() - began),
    processes: [
      { name: 'outer proxy', child: outer.child },
      { name: 'inner proxy', child: inner.child },
    ],
  }
}

export interface PairsContext {
  readonly processes: Processes
  readonly modelUrl: string
  readonly redisUrl: string | undefined
  readonly models: readonly ModelName[]
}

/** The service as one process per role, with `pairs` gateways and as many conductors. */
export async function startPairs(context: PairsContext, pairs: 1 | 2): Promise<LoadTarget & { cluster: Cluster }> {
  const { processes, redisUrl, models } = context
  const cluster = await startCluster({
    processes,
    env: environment(context.modelUrl),
    pairs,
    nodeArgs: () => inspectable,
    ipc: true,
    ...(redisUrl === undefined ? {} : { redisUrl }),
  })
  const [conductor = ''] = cluster.urls('conductor')
  const agents = new Map<ModelName, Agent>()
  for (const model of models) agents.set(model, await publishAgent(conductor, cluster.apiKey, model))
  const agentOf = (model: ModelName): Agent => {
    const agent = agents.get(model)
    if (!agent) throw new Error(`no agent on ${model}`)
    return agent
  }
  return {
    name: pairs === 1 ? 'one pair' : 'two pairs',
    cluster,
    bootMs: cluster.bootMs,
    roots: () => cluster.pids(),
    postgresRoots: () => [cluster.postgres.child.pid ?? 0],
    chat: (model, sync) => chatOf(cluster.urls('gateway'), agentOf(model), sync),
    processes: [
      ...cluster.members.map(({ name, process }) => ({ name, child: process.child })),
      { name: 'postgres', child: cluster.postgres.child },
    ],
    runs: {
      urls: cluster.urls('conductor'),
      profile: agentOf('burst-20').profile,
      key: await issueKey(conductor, cluster.apiKey, 'member'),
    },
  }
}
