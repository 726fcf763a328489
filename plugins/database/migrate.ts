import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import pg from 'pg'
import { isServerAway } from './errors.ts'

const directory = new URL('../../migrations/', import.meta.url)
const longestMs = 30 * 60_000

export interface Migration {
  readonly number: number
  readonly name: string
  readonly sql: string
  readonly checksum: string
}

/** The migrations of this release, in number order. */
export async function readMigrations(from: URL = directory): Promise<Migration[]> {
  const files = (await readdir(from)).filter((file) => file.endsWith('.sql'))
  const migrations = await Promise.all(files.map((file) => readMigration(from, file)))
  migrations.sort((a, b) => a.number - b.number)
  for (const [i, m] of migrations.entries()) {
    const next = migrations[i + 1]
    if (m.number === next?.number) throw new Error(`Two migrations have one number: ${m.name} and ${next.name}.`)
  }
  return migrations
}

async function readMigration(from: URL, file: string): Promise<Migration> {
  const number = /^(\d{4})_[a-z0-9]+(?:[_-][a-z0-9]+)*\.sql$/.exec(file)?.[1]
  if (number === undefined) throw new Error(`migrations/${file} is not named NNNN_<plugin>_<what>.sql.`)
  const sql = await readFile(new URL(file, from), 'utf8')
  if (!sql.startsWith('-- owner: ')) throw new Error(`migrations/${file} does not begin with '-- owner: <unit>'.`)
  // A checkout with CRLF line ends is the same migration.
  const checksum = createHash('sha256').update(sql.replaceAll('\r\n', '\n')).digest('hex')
  return { number: Number(number), name: file.slice(0, -4), sql, checksum }
}

/**
 * Brings the database to this release's schema, and resolves to the names of what it applied. Any number of processes may
 * do so at once. Rows of a later release are left alone, so that the previous binary runs on the next schema.
 */
export async function migrate(dsn: string, migrations?: readonly Migration[]): Promise<string[]> {
  const client = new pg.Client({
    connectionString: dsn,
    connectionTimeoutMillis: 5_000,
    // A server that was lost in silence is noticed; a migration that works for so long is not cut short by anything else.
    query_timeout: longestMs,
    keepAlive: true,
    application_name: 'agent-orc migrate',
  })
  client.on('error', () => {})
  await client.connect()
  try {
    await createLedger(client)
    const applied: string[] = []
    for (const m of migrations ?? (await readMigrations())) if (await apply(client, m)) applied.push(m.name)
    return applied
  } finally {
    await client.end().catch(() => {})
  }
}

async function createLedger(client: pg.Client): Promise<void> {
  const sql = `CREATE TABLE IF NOT EXISTS schema_migrations (
    number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())`
  // IF NOT EXISTS looks before it leaps: of two first boots one may still collide in the catalog, and then it exists.
  await client.query(sql).catch((error: { code?: string }) => {
    if (!['23505', '42P07', '42710'].includes(error.code ?? '')) throw error
  })
}

/**
 * The row goes in first: a second process waits on its primary key until the first one has committed and then finds the
 * work done, or takes over when it failed. No advisory lock, which a transaction pooler would break.
 */
async function apply(client: pg.Client, m: Migration): Promise<boolean> {
  await client.query('BEGIN')
  try {
    const claimed = await client.query(
      'INSERT INTO schema_migrations (number, name, checksum) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING number',
      [m.number, m.name, m.checksum],
    )
    if (claimed.rowCount === 1) await client.query(m.sql)
    else await checkSame(client, m)
    await client.query('COMMIT')
    return claimed.rowCount === 1
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {})
    throw describe(error, m)
  }
}

async function checkSame(client: pg.Client, m: Migration): Promise<void> {
  const { rows } = await client.query<{ name: string; checksum: string }>(
    'SELECT name, checksum FROM schema_migrations WHERE number = $1',
    [m.number],
  )
  if (rows[0]?.checksum === m.checksum) return
  throw new MigrationFailed(
    `Migration ${m.name} is not the one that this database has applied as ${rows[0]?.name}: ` +
      'its file was changed. Restore it and write the change as a new migration.',
  )
}

/** PostgreSQL refused a migration, or its file is not the one that was applied: trying again changes nothing. */
export class MigrationFailed extends Error {}

/** A connection that was lost is no failure of the migration: the error is its own, and the migration may be tried again. */
const describe = (error: unknown, m: Migration): unknown =>
  error instanceof MigrationFailed || isServerAway(error)
    ? error
    : new MigrationFailed(`Migration ${m.name} failed and was rolled back: ${(error as Error).message}`, {
        cause: error,
      })
