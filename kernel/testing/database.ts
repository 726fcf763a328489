import { randomBytes } from 'node:crypto'
import { mkdtemp, rm, statfs } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Redis } from 'ioredis'
import type { TenantTx } from '#contracts/database'
import { startPostgres } from '#kit/postgres'

/** A server with a migrated template database, which the test script passes to every test process. */
interface TestServer {
  /** A role that may create databases but is no superuser, in a database that is never cloned. */
  readonly dsn: string
  readonly template: string
}

// A test's commits need not survive a power cut, and 20 databases share these connections.
const settings = {
  fsync: 'off',
  synchronous_commit: 'off',
  full_page_writes: 'off',
  max_wal_size: '128MB',
  max_connections: '300',
}

// The variables by which cli/scripts/test.ts passes the one server to its child processes.
const dsnVariable = 'AGENT_ORC_TEST_DSN'
const templateVariable = 'AGENT_ORC_TEST_TEMPLATE'

export const serverVariables = (server: TestServer): Record<string, string> => ({
  [dsnVariable]: server.dsn,
  [templateVariable]: server.template,
})

const open = async <T>(dsn: string, work: (client: pg.Client) => Promise<T>): Promise<T> => {
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}

/** The DSN of another database on the same server with the same role. */
function inDatabase(dsn: string, database: string): string {
  const url = new URL(dsn)
  url.pathname = `/${encodeURIComponent(database)}`
  return url.href
}

const uniqueName = (kind: string): string => `ao_${kind}_${randomBytes(6).toString('hex')}`

/**
 * Starts the server of a test run, or uses the developer's own, and migrates a template database. Unlike plugins, this and cli/scripts/test.ts may
 * read the environment, because a test run has no role file.
 */
export async function startTestServer(): Promise<{ server: TestServer; unref(): void; stop(): Promise<void> }> {
  const own = process.env['AGENT_ORC_TEST_POSTGRES'] || process.env['POSTGRES_DSN']
  const started = own ? { dsn: own, unref() {}, stop: async () => {} } : await startEmbedded()
  try {
    const template = uniqueName('template')
    await createTemplate(started.dsn, template)
    const stop = async (): Promise<void> => {
      if (own) await open(own, (client) => client.query(`DROP DATABASE IF EXISTS ${template} WITH (FORCE)`))
      await started.stop()
    }
    return { server: { dsn: started.dsn, template }, unref: started.unref, stop }
  } catch (error) {
    await started.stop()
    throw error
  }
}

/**
 * A folder in memory, if Linux has one with enough room: a test database is 600 files, and creating them on a disk takes four times the CPU. In
 * containers the folder is often too small.
 */
async function roomInMemory(): Promise<string | undefined> {
  const folder = '/dev/shm'
  const room = await statfs(folder).catch(() => undefined)
  return room && room.bavail * room.bsize > 2 ** 31 ? folder : undefined
}

async function startEmbedded(): Promise<{ dsn: string; unref(): void; stop(): Promise<void> }> {
  const directory = await mkdtemp(join((await roomInMemory()) ?? tmpdir(), 'ao-test-'))
  const remove = (): Promise<void> => rm(directory, { recursive: true, force: true })
  try {
    const postgres = await startPostgres({ dataDir: join(directory, 'postgres'), settings })
    await open(postgres.adminDsn(), (client) => client.query('ALTER ROLE agent_orc CREATEDB'))
    return { dsn: postgres.dsn(), unref: () => postgres.unref(), stop: () => postgres.stop().finally(remove) }
  } catch (error) {
    await remove()
    throw error
  }
}

async function createTemplate(dsn: string, template: string): Promise<void> {
  await open(dsn, async (client) => {
    const { rows } = await client.query<{ name: string; superuser: boolean; may: boolean }>(
      'SELECT rolname AS name, rolsuper OR rolbypassrls AS superuser, rolcreatedb AS may FROM pg_roles WHERE rolname = current_user',
    )
    const { name, superuser, may } = rows[0]!
    if (superuser || !may) {
      throw new Error(
        `Tests need a role that creates databases and obeys row security: ALTER ROLE "${name}" CREATEDB NOSUPERUSER NOBYPASSRLS`,
      )
    }
    await client.query(`CREATE DATABASE ${template}`)
  })
  const database = inDatabase(dsn, template)
  const { migrate } = (await load('plugins/database/migrate.ts')) as { migrate(dsn: string): Promise<string[]> }
  await migrate(database)
  await open(database, async (client) => {
    await client.query(`INSERT INTO tenants (id, name) VALUES ('acme', 'Acme'), ('globex', 'Globex')`)
    // Every conductor would create it, which takes as long as the rest of its database. Where the server lacks it, each conductor says so.
    await client.query('CREATE EXTENSION IF NOT EXISTS pg_trgm').catch(() => {})
  })
}

/** Loads a plugin's file by address instead of an import: the kernel depends on no plugin, only its test harness uses some. */
export const load = (path: string): Promise<unknown> => import(new URL(`../../${path}`, import.meta.url).href)

// One server per process, started by the first test that needs it: under a bare `node --test file` no other process provides one.
let ofThisProcess: Promise<TestServer> | undefined

async function testServer(): Promise<TestServer> {
  const dsn = process.env[dsnVariable]
  const template = process.env[templateVariable]
  if (dsn && template) return { dsn, template }
  const { server, unref, stop } = await startTestServer()
  unref()
  process.once('beforeExit', () => void stop())
  return server
}

/** The DSN of a new, migrated database with the tenants `default`, `acme` and `globex`, dropped after the test. */
export async function freshDatabase(t: Pick<TestContext, 'after'>): Promise<string> {
  const { dsn, template } = await (ofThisProcess ??= testServer())
  const name = uniqueName('test')
  await manage(dsn, `CREATE DATABASE ${name} TEMPLATE ${template} STRATEGY file_copy`)
  t.after(() => drop(dsn, name))
  return inDatabase(dsn, name)
}

// The types of pg lack both.
type Manager = pg.Client & { ref(): void; unref(): void }

// One for all databases of the process, because a connection costs PostgreSQL as much as a database does.
let manager: Manager | undefined
let turn: Promise<unknown> = Promise.resolve()

/** Runs a statement about a whole database, one at a time. The connection stays for the next one, and does not keep the process alive meanwhile. */
function manage(dsn: string, text: string): Promise<void> {
  const run = async (): Promise<void> => {
    const client = (manager ??= await connectManager(dsn))
    client.ref()
    await client.query(text).finally(() => client.unref())
  }
  const done = turn.then(run)
  turn = done.catch(() => {})
  return done
}

async function connectManager(dsn: string): Promise<Manager> {
  const client = new pg.Client({ connectionString: dsn }) as Manager
  // The next statement opens another one, for example when a test has ended the connections of its server.
  client.on('error', () => (manager = undefined)).on('end', () => (manager = undefined))
  await client.connect()
  return client
}

/**
 * Drops by force, because a failed test may have left connections, and its own message matters more than theirs. Connections that only a superuser
 * could end, such as an autovacuum, are waited for. A database that remains does not fail the test, whose other hooks must run.
 */
async function drop(dsn: string, name: string): Promise<void> {
  for (let attempt = 0; attempt < 50; attempt++) {
    try {
      await manage(dsn, `DROP DATABASE IF EXISTS ${name} WITH (FORCE)`)
      return
    } catch {
      await sleep(100)
    }
  }
}

/**
 * The URL of a Redis server with a key prefix for this test, whose keys are removed after it. Without a server the test is skipped with the reason,
 * and undefined is returned; with CI=true that is a failure instead.
 */
export async function redisForTests(t: Pick<TestContext, 'after' | 'skip'>): Promise<string | undefined> {
  // Unlike plugins, this may read the environment, because a test has no role file.
  const address = process.env['REDIS_URL'] || 'redis://127.0.0.1:6379'
  const client = new Redis(address, { lazyConnect: true, retryStrategy: () => null, connectTimeout: 2_000 })
  client.on('error', () => {})
  try {
    await client.connect()
  } catch (cause) {
    client.disconnect()
    const reason = `no Redis answers at ${new URL(address).host}: start one, or set REDIS_URL`
    if (process.env['CI'] === 'true') throw new Error(reason, { cause })
    t.skip(reason)
    return undefined
  }
  const prefix = `ao-test-${randomBytes(6).toString('hex')}:`
  t.after(async () => {
    for await (const keys of client.scanStream({ match: `${prefix}*`, count: 1_000 })) {
      if ((keys as string[]).length > 0) await client.unlink(...(keys as string[]))
    }
    await client.quit()
  })
  const url = new URL(address)
  url.searchParams.set('keyPrefix', prefix)
  return url.href
}

/** Resolves when another transaction waits for a row that this one has locked. */
export async function blocksAnother(tx: Pick<TenantTx, 'query'>): Promise<void> {
  const text = 'SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))'
  while ((await tx.query({ text })).length === 0) await nextTurn()
}
