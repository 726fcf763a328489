import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { DBOS } from '@dbos-inc/dbos-sdk'
import { PgBoss } from 'pg-boss'
import { startPostgres } from '#kit/postgres'
import { dataDirectory } from '../cluster.ts'
import type { Processes } from '../processes.ts'
import { type Engine, nodesOf, type Shape } from './engine.ts'

async function postgres(processes: Processes): Promise<string> {
  const server = await startPostgres({
    dataDir: await dataDirectory(processes),
    settings: { fsync: 'off', shared_buffers: '512MB' },
  })
  processes.onStop(() => server.stop())
  return server.dsn()
}

/** Counts what is left of each workflow in this process, and tells when nothing is. */
class Countdown {
  readonly #left = new Map<string, { nodes: number; began: number; over: (ms: number) => void }>()
  begin(id: string, nodes: number): Promise<number> {
    return new Promise((over) => this.#left.set(id, { nodes, began: performance.now(), over }))
  }
  one(id: string): void {
    const run = this.#left.get(id)
    if (!run || --run.nodes > 0) return
    this.#left.delete(id)
    run.over(performance.now() - run.began)
  }
}

/** Requests under way at once, as with the service. */
const abreast = 20

/**
 * An engine behind the barest of servers: a request begins a workflow, as it does at the service, without keys, limits and audit. `begin`
 * resolves once it is stored, to the promise of how many milliseconds it took.
 */
async function behindHttp(
  name: string,
  begin: (shape: Shape) => Promise<{ over: Promise<number> }>,
  stop: () => Promise<void>,
) {
  const under = new Map<string, Promise<number>>()
  const server = createServer((request, reply) => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    request.on('end', async () => {
      const id = randomUUID()
      under.set(id, (await begin(JSON.parse(Buffer.concat(chunks).toString()) as Shape)).over)
      reply.writeHead(202, { 'content-type': 'application/json' }).end(JSON.stringify({ id }))
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const engine: Engine = {
    name,
    async run(shape, count) {
      const began = performance.now()
      const each: Promise<number>[] = []
      let left = count
      const send = async (): Promise<void> => {
        while (left-- > 0) {
          const answer = await fetch(url, { method: 'POST', body: JSON.stringify(shape) })
          const { id } = (await answer.json()) as { id: string }
          each.push(under.get(id)!)
          under.delete(id)
        }
      }
      await Promise.all(Array.from({ length: Math.min(abreast, count) }, send))
      return { each: await Promise.all(each), all: performance.now() - began }
    },
    async stop() {
      server.close()
      await stop()
    },
  }
  return engine
}

/**
 * Plain jobs of pg-boss, that keep no state of a workflow: a job sends those behind it when it is done. They are taken as the jobs of
 * conductors are.
 */
export async function startBoss(processes: Processes): Promise<Engine> {
  const boss = new PgBoss({ connectionString: await postgres(processes), schema: 'pgboss', useListenNotify: true })
  await boss.start()
  await boss.createQueue('nodes', { notify: true })
  const countdown = new Countdown()
  interface Node {
    readonly run: string
    readonly step: number
    readonly chain: number
    readonly wide: number
    readonly deep: number
  }
  const fanOut = (node: Node): Promise<unknown> =>
    boss.insert(
      'nodes',
      Array.from({ length: node.wide }, () => ({ data: node })),
    )
  const polling = { pollingIntervalSeconds: 5, notifyPollingIntervalSeconds: 5 }
  const taking = { localConcurrency: 4, batchSize: 10, burstWhenBatchFull: true, perJobResults: true } as const
  await boss.work<Node>('nodes', { ...taking, ...polling }, (jobs) =>
    Promise.all(
      jobs.map(async ({ id, data }) => {
        const next = { ...data, step: data.step + 1 }
        const { chain, wide, deep } = data
        if (next.step === chain && wide > 0) await fanOut(next)
        else if (next.step < chain + (wide > 0 ? deep : 0)) await boss.send('nodes', next)
        countdown.one(data.run)
        return { id, status: 'completed' as const }
      }),
    ),
  )
  const begin = async (shape: Shape): Promise<{ over: Promise<number> }> => {
    const run = randomUUID()
    const over = countdown.begin(run, nodesOf(shape))
    const { chain, wide, deep } = shape
    const first = { run, step: 0, chain, wide, deep }
    await (chain > 0 ? boss.send('nodes', first) : fanOut(first))
    return { over }
  }
  return behindHttp('pg-boss', begin, () => boss.stop({ graceful: false }))
}

/** Workflows of DBOS, which keep what each step came to. */
export async function startDbos(processes: Processes): Promise<Engine> {
  DBOS.setConfig({
    name: 'bench',
    systemDatabaseUrl: await postgres(processes),
    logLevel: 'error',
    runAdminServer: false,
  })
  const step = () => DBOS.runStep(async () => true, { name: 'node' })
  const workflow = DBOS.registerWorkflow(
    async ({ chain, wide }: Pick<Shape, 'chain' | 'wide'>) => {
      for (let i = 0; i < chain; i++) await step()
      await Promise.all(Array.from({ length: wide }, step))
    },
    { name: 'workflow' },
  )
  await DBOS.launch()
  const begin = async ({ chain, wide }: Shape): Promise<{ over: Promise<number> }> => {
    const began = performance.now()
    const handle = await DBOS.startWorkflow(workflow)({ chain, wide })
    return { over: handle.getResult().then(() => performance.now() - began) }
  }
  return behindHttp('DBOS', begin, () => DBOS.shutdown())
}
