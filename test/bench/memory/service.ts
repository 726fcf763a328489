import { startPostgres } from '#kit/postgres'
import { command, dataDirectory } from '../cluster.ts'
import type { Processes } from '../processes.ts'
import { environment } from '../service.ts'

export interface Service {
  /** Of the database that the service uses, as the role that owns its tables. */
  readonly dsn: string
  /** Asks the conductor as an owner, and fails for anything but success. */
  ask(method: string, path: string, body?: object): Promise<unknown>
}

/** The service as `agent-orc dev` starts it, on a PostgreSQL of its own. */
export async function startService(processes: Processes): Promise<Service> {
  const postgres = await startPostgres({
    dataDir: await dataDirectory(processes),
    settings: { fsync: 'off', shared_buffers: '512MB' },
  })
  processes.onStop(() => postgres.stop())
  const dsn = postgres.dsn()
  const env = {
    ...environment('http://127.0.0.1:9'),
    POSTGRES_DSN: dsn,
    AGENT_ORC_LIMIT_READS: '1000000000',
    AGENT_ORC_LIMIT_WRITES: '1000000000',
  }
  const data = await dataDirectory(processes)
  const { line } = await processes.node([...command('dev'), '--json', '--port', '0', '--data', data], env)
  const { conductorUrl, apiKey } = line as { conductorUrl: string; apiKey: string }
  return {
    dsn,
    async ask(method, path, body) {
      const response = await fetch(conductorUrl + path, {
        method,
        headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' },
        body: body === undefined ? null : JSON.stringify(body),
      })
      const text = await response.text()
      if (!response.ok) throw new Error(`${method} ${path} answers ${response.status}: ${text}`)
      return JSON.parse(text) as unknown
    },
  }
}
