import { randomUUID } from 'node:crypto'
import { DBOS } from '@dbos-inc/dbos-sdk'
import { PgBoss } from 'pg-boss'
import { startPostgres } from '#kit/postgres'
import { dataDirectory } from '../cluster.ts'
import type { Processes } from '../processes.ts'
import { type Engine, nodesOf, type Shape } from './index.ts'

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

async function together(count: number, one: () => Promise<number>) {
  const began = performance.now()
  const each = await Promise.all(Array.from({ length: count }, one))
  return { each, all: performance.now() - began }
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
  }
  const polling = { pollingIntervalSeconds: 5, notifyPollingIntervalSeconds: 5 }
  const taking = { localConcurrency: 4, batchSize: 10, burstWhenBatchFull: true, perJobResults: true } as const
  await boss.work<Node>('nodes', { ...taking, ...polling }, (jobs) =>
    Promise.all(
      jobs.map(async ({ id, data }) => {
        const next = { ...data, step: data.step + 1 }
        if (next.step < data.chain) await boss.send('nodes', next)
        else if (next.step === data.chain && data.wide > 0) {
          await boss.insert(
            'nodes',
            Array.from({ length: data.wide }, () => ({ data: next })),
          )
        }
        countdown.one(data.run)
        return { id, status: 'completed' as const }
      }),
    ),
  )
  return {
    name: 'pg-boss',
    run: (shape, count) =>
      together(count, async () => {
        const run = randomUUID()
        const over = countdown.begin(run, nodesOf(shape))
        await boss.send('nodes', { run, step: 0, chain: shape.chain, wide: shape.wide })
        return over
      }),
    stop: () => boss.stop({ graceful: false }),
  }
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
  return {
    name: 'DBOS',
    run: ({ chain, wide }, count) =>
      together(count, async () => {
        const began = performance.now()
        await (await DBOS.startWorkflow(workflow)({ chain, wide })).getResult()
        return performance.now() - began
      }),
    stop: () => DBOS.shutdown(),
  }
}
