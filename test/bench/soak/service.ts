import { randomBytes } from 'node:crypto'
import { dirname } from 'node:path'
import { createRandom } from '../../chaos/random.ts'
import { issueKey, publishAgent } from '../agents.ts'
import { inspectable } from '../inspector.ts'
import { changedRole, dataDirectory, type Cluster, roleFile, startCluster } from '../cluster.ts'
import type { Processes } from '../processes.ts'
import { startRedis } from '../redis.ts'
import { environment } from '../service.ts'
import { startModel } from '../targets.ts'
import type { Receiver } from './receiver.ts'
import type { World } from './world.ts'

/** Long enough that a conversation continues in memory, and short enough that sessions leave it all the time: with the default they would pile up for a day. */
const idleTtl = '1m'

/** The role file of the soak's runner, which is written to a folder. */
export const runnerRole = (folder: string): Promise<string> =>
  changedRole('runner', folder, 'runner', () => ({ idleTtl }))

export interface Service {
  readonly cluster: Cluster
  readonly usesRedis: boolean
  world(seed: number): Promise<World>
}

/** Two gateways and conductors where there is a Redis, else one of each, as the documentation demands. */
export async function startService(processes: Processes, receiver: Receiver): Promise<Service> {
  const model = await startModel(processes, 0)
  const redisUrl = await startRedis(processes)
  const runner = await runnerRole(dirname(await dataDirectory(processes)))
  const cluster = await startCluster({
    processes,
    env: {
      ...environment(model.url),
      AGENT_ORC_WEBHOOK_KEY: randomBytes(32).toString('base64'),
      AGENT_ORC_WEBHOOK_ALLOW_HOSTS: `${new URL(receiver.url).host}=*`,
    },
    pairs: redisUrl === undefined ? 1 : 2,
    ...(redisUrl === undefined ? {} : { redisUrl }),
    nodeArgs: () => inspectable,
    config: (name) => (name === 'runner' ? runner : roleFile(name)),
    ipc: true,
  })
  return {
    cluster,
    usesRedis: redisUrl !== undefined,
    async world(seed) {
      const random = createRandom(seed)
      const [conductor = ''] = cluster.urls('conductor')
      const publish = (name: string) => publishAgent(conductor, cluster.apiKey, name)
      const key = await issueKey(conductor, cluster.apiKey, 'admin')
      return {
        random,
        agents: { burst: await publish('burst-20'), tick: await publish('tick-20'), slow: await publish('slow-4') },
        receiver,
        conversations: [],
        requests: 0,
        apiKey: key,
        gateway: () => random.pick(cluster.urls('gateway')),
        conductor: () => random.pick(cluster.urls('conductor')),
      }
    },
  }
}
