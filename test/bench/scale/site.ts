import { startPostgres } from '#kit/postgres'
import { command, dataDirectory } from '../cluster.ts'
import { say } from '../command.ts'
import type { Processes } from '../processes.ts'
import { environment } from '../service.ts'
import { timed } from '../statistics.ts'
import type { Figures } from './report.ts'
import { type Question, questions } from './questions.ts'
import { seed, settle, tenant } from './seed.ts'
import { openStore, type Stage } from './store.ts'

/** A conductor with a database of its own, in which a tenant has so many runs. */
export interface Site {
  readonly count: number
  readonly prepared: Figures['prepared']
  readonly works: Stage['works']
  readonly questions: readonly Question[]
  ask(question: Question): Promise<void>
}

export async function openSite(count: number, processes: Processes): Promise<Site> {
  const settings = { fsync: 'off', shared_buffers: '1GB', max_wal_size: '8GB', checkpoint_timeout: '30min' }
  const postgres = await startPostgres({ dataDir: await dataDirectory(processes), settings })
  processes.onStop(() => postgres.stop())
  const env = { ...environment('http://127.0.0.1:9'), POSTGRES_DSN: postgres.dsn() }
  const data = await dataDirectory(processes)
  const { line } = await processes.node([...command('dev'), '--json', '--port', '0', '--data', data], env)
  const { conductorUrl, apiKey } = line as { conductorUrl: string; apiKey: string }
  const stage = await openStore(postgres.dsn())
  processes.onStop(() => stage.close())
  const ask = async (path: string): Promise<Response> => {
    const response = await fetch(conductorUrl + path, { headers: { authorization: `Bearer ${apiKey}` } })
    if (response.status !== 200) throw new Error(`${path} answers ${response.status}: ${await response.text()}`)
    return response
  }
  say(`seeding ${count} runs`)
  const seeded = await timed(() => seed(postgres.adminDsn('agent_orc'), count))
  say(`in ${Math.round(seeded / 1_000)} s; adding them up`)
  const rolled = await timed(() => stage.rollUp(tenant))
  await settle(postgres.adminDsn('agent_orc'))
  say(`in ${Math.round(rolled / 1_000)} s`)
  return {
    count,
    prepared: { seeded, rolled },
    works: stage.works,
    questions: await questions(ask),
    ask: async ([, path]) => void (await (await ask(path)).arrayBuffer()),
  }
}
