import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { isServerAway } from './errors.ts'
import { readMigrations } from './migrate.ts'

interface Log {
  warn(message: string): void
}

const attempts = 40
const pauseMs = 250

/** Opens one connection when the server answers, and waits up to 10 s for a server that is still starting. */
async function connect(dsn: string, log: Log): Promise<pg.Client> {
  for (let attempt = 1; ; attempt++) {
    const client = new pg.Client({
      connectionString: dsn,
      connectionTimeoutMillis: 5_000,
      application_name: 'agent-orc',
    })
    client.on('error', () => {})
    try {
      await client.connect()
      return client
    } catch (error) {
      await client.end().catch(() => {})
      const { code, message } = error as { code?: string; message: string }
      const server = `PostgreSQL at ${client.host}:${client.port}`
      if (!isServerAway(error)) {
        throw new Error(`${server} refuses the connection: ${message}. Check POSTGRES_DSN.`, { cause: error })
      }
      if (attempt === attempts) {
        throw new Error(
          `${server} does not answer (${code ?? message}). Start it, or set POSTGRES_DSN to one that runs.`,
          { cause: error },
        )
      }
      if (attempt === 1) log.warn(`waiting for ${server} (${code ?? message})`)
      await sleep(pauseMs)
    }
  }
}

/** Waits for the server and refuses a role for whom row security does not hold. */
export async function checkServer(dsn: string, log: Log): Promise<void> {
  const client = await connect(dsn, log)
  try {
    const { rows } = await client.query<{ name: string; exempt: boolean }>(
      'SELECT rolname AS name, rolsuper OR rolbypassrls AS exempt FROM pg_roles WHERE rolname = current_user',
    )
    const { name, exempt } = rows[0]!
    if (!exempt) return
    const role = pg.escapeIdentifier(name)
    throw new Error(
      `The database role ${role} bypasses row security, so tenants could see each other's rows. ` +
        `Run: ALTER ROLE ${role} NOSUPERUSER NOBYPASSRLS; or connect as another role that owns the database.`,
    )
  } finally {
    await client.end()
  }
}

/** For a process that does not migrate itself: waits up to 10 s for the one that does, e.g. a conductor started with it. */
export async function awaitSchema(dsn: string, log: Log): Promise<void> {
  const wanted = await readMigrations()
  const client = await connect(dsn, log)
  try {
    for (let attempt = 1; ; attempt++) {
      const missing = await missingMigrations(
        client,
        wanted.map((m) => m.number),
      )
      if (missing.length === 0) return
      if (attempt === attempts) {
        throw new Error(
          `The database lacks migrations ${missing.join(', ')}: start a conductor, or run: agent-orc migrate`,
        )
      }
      if (attempt === 1) log.warn('waiting for the database to be migrated')
      await sleep(pauseMs)
    }
  } finally {
    await client.end()
  }
}

async function missingMigrations(client: pg.Client, wanted: readonly number[]): Promise<number[]> {
  const { rows: found } = await client.query<{ ledger: string | null }>(
    `SELECT to_regclass('schema_migrations') AS ledger`,
  )
  if (found[0]!.ledger === null) return [...wanted]
  const { rows } = await client.query<{ number: number }>('SELECT number FROM schema_migrations')
  const applied = new Set(rows.map((row) => row.number))
  return wanted.filter((number) => !applied.has(number))
}
