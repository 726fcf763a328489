import pg from 'pg'
import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import type { ReadinessCheck } from '#contracts/health'
import { retry } from '#kit'
import { databaseAway, isServerAway, schemaAway } from './errors.ts'
import { migrate, missingMigrations, pendingMigrations } from './migrate.ts'
import { type Migration, MigrationFailed, readMigrations } from './migrations.ts'
import type { Gate } from './pool.ts'

/** The server's address in parts, as platforms provide it: `POSTGRES_USER`, `PGHOST` and so on. Specification 1.1. */
interface AddressParts {
  readonly host?: string
  readonly port?: number
  readonly user?: string
  readonly password?: string
  readonly database?: string
}

/** A DSN made of parts, or undefined when neither host nor user is given. `host` may be a directory of UNIX sockets. */
export function dsnOf({ host, port, user, password, database }: AddressParts): string | undefined {
  if (host === undefined && user === undefined) return undefined
  const socket = host?.startsWith('/') ?? false
  const login =
    user === undefined
      ? ''
      : encodeURIComponent(user) + (password === undefined ? '' : `:${encodeURIComponent(password)}`)
  const at = login === '' ? '' : `${login}@`
  const name = encodeURIComponent(database ?? user ?? 'postgres')
  if (socket) return `postgres://${at}/${name}?host=${encodeURIComponent(host!)}&port=${port ?? 5432}`
  const address = host?.includes(':') ? `[${host}]` : (host ?? '127.0.0.1')
  return `postgres://${at}${address}:${port ?? 5432}/${name}`
}

/** A sentence that says why a DSN names no server at all. It never quotes the DSN, which may hold a password. */
export function dsnProblem(dsn: string): string | undefined {
  // pg takes any other text for the name of a local database, and would try to connect to it for ever.
  if (dsn.startsWith('/')) return undefined
  if (!/^(postgres|postgresql|socket):/.test(dsn)) return 'POSTGRES_DSN must begin with postgres:// or postgresql://'
  try {
    void new pg.Client({ connectionString: dsn })
    return undefined
  } catch {
    return 'POSTGRES_DSN is not a valid address; write postgres://user:password@host:5432/database and percent-encode special characters'
  }
}

/** The database cannot be used now, but may become usable without a restart. */
export class NotYet extends Error {}

// A network that drops all packets must not block an attempt for ever.
const connectMs = 5_000
const answerMs = 10_000

/**
 * One attempt to make the database usable: the server answers, row security holds for the role, and the schema is that of
 * this release with the plugins of the role. Resolves to the migrations it applied. Throws `NotYet` for a temporary failure, and any other error for one
 * that an operator has to correct.
 */
export async function prepare(dsn: string, migrates: boolean, ofPlugins: readonly Migration[]): Promise<string[]> {
  const wanted = [...(await readMigrations()), ...ofPlugins]
  const client = new pg.Client({
    connectionString: dsn,
    connectionTimeoutMillis: connectMs,
    query_timeout: answerMs,
    application_name: 'agent-orc',
  })
  client.on('error', () => {})
  const server = `PostgreSQL at ${client.host}:${client.port}`
  const away = (error: unknown): NotYet => {
    const { code, message } = error as { code?: string; message: string }
    const what = `${server} does not answer (${code ?? message})`
    return new NotYet(`${what}. Start it, or set POSTGRES_DSN to one that runs.`, { cause: error })
  }
  try {
    await client.connect()
    await refuseExempt(client)
    const missing = await (migrates ? pendingMigrations : missingMigrations)(client, wanted)
    if (missing.length === 0) return []
    if (migrates) return await migrate(dsn, wanted)
    const names = missing.map(({ plugin, number, name }) => (plugin === undefined ? String(number) : name))
    const how = missing.some(({ plugin }) => plugin !== undefined)
      ? 'start a conductor that has these plugins too, or run: agent-orc migrate --config <this role file>'
      : 'start a conductor, or run: agent-orc migrate'
    throw new NotYet(`The database lacks migrations ${names.join(', ')}: ${how}`)
  } catch (error) {
    if (error instanceof NotYet || isFinal(error)) throw error
    if (isServerAway(error)) throw away(error)
    const { message } = error as Error
    throw new Error(`${server} refuses the connection: ${message}. Check POSTGRES_DSN.`, { cause: error })
  } finally {
    await client.end().catch(() => {})
  }
}

class RoleRefused extends Error {}

/** True for an error that waiting cannot cure. */
const isFinal = (error: unknown): boolean => error instanceof RoleRefused || error instanceof MigrationFailed

/** Refuses a role that bypasses row security, because row security is what separates tenants. Specification 1.1. */
async function refuseExempt(client: pg.Client): Promise<void> {
  const { rows } = await client.query<{ name: string; exempt: boolean }>(
    'SELECT rolname AS name, rolsuper OR rolbypassrls AS exempt FROM pg_roles WHERE rolname = current_user',
  )
  const { name, exempt } = rows[0]!
  if (!exempt) return
  const role = pg.escapeIdentifier(name)
  throw new RoleRefused(
    `The database role ${role} bypasses row security, so tenants could see each other's rows. ` +
      `Run: ALTER ROLE ${role} NOSUPERUSER NOBYPASSRLS; or connect as another role that owns the database.`,
  )
}

const limitMs = 2_000

/** `SELECT 1` within 2 s. Concurrent probes share one check, so a hanging server does not use up the pool. */
export function createReadinessCheck(database: Pick<Database, 'systemBatch'>): ReadinessCheck {
  let asking: Promise<unknown> | undefined
  return async () => {
    asking ??= database.systemBatch([{ name: 'ao_ready', text: 'SELECT 1' }]).finally(() => (asking = undefined))
    let timer: NodeJS.Timeout | undefined
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(databaseAway(new Error(`no answer within ${limitMs} ms`))), limitMs)
    })
    await Promise.race([asking, late]).finally(() => clearTimeout(timer))
  }
}

/** Milliseconds that the boot waits for a slow database, for example for a long migration, which then continues in the background. */
const bootMs = 10_000
const waits = { firstMs: 250, longestMs: 2_000 }

interface OpeningOptions {
  /** One attempt; resolves to the migrations it applied. */
  readonly prepare: () => Promise<readonly string[]>
  /** True: the boot fails without the database within 10 s. False: the boot continues without it. */
  readonly required: boolean
  readonly log: FastifyBaseLogger
  readonly stopping: AbortSignal
  /** Called when an operator has to act after the boot: this process must not continue. */
  readonly onRefused: (error: Error) => void
}

/**
 * Tries until the database is usable. Resolves then, or when the boot should continue without the database; rejects when an operator must act. The
 * gate opens once and for good: a later outage shows in each connection.
 */
export async function openDatabase(options: OpeningOptions): Promise<Gate> {
  const { log, stopping, required } = options
  let reason = new NotYet('The database is being prepared.')
  const gate: { closed: Gate['closed'] } = {
    closed: () => (reason.cause === undefined ? schemaAway(reason) : databaseAway(reason)),
  }
  let booting = true
  const attempt = async (): Promise<void> => {
    for (const name of await options.prepare()) log.info(`applied migration ${name}`)
    if (!booting) log.info('the database can be used')
    gate.closed = undefined
  }
  const mayPass = (error: unknown): boolean => {
    // During the boot a wrong password ends the process. Later only harmful or permanent errors do.
    if (!(error instanceof NotYet) && (booting || isFinal(error))) return false
    const { message } = error as Error
    if (reason.message !== message) log.warn(`waiting: ${message}`)
    reason = error instanceof NotYet ? error : new NotYet(message, { cause: error })
    if (!required) goOn()
    return true
  }
  let goOn = (): void => {}
  await new Promise<void>((resolve, reject) => {
    goOn = () => {
      booting = false
      resolve()
    }
    const late = setTimeout(() => (required ? reject(reason) : goOn()), bootMs)
    retry(attempt, { ...waits, signal: stopping, mayPass })
      .then(resolve, (error: Error) => {
        if (booting) reject(error)
        else if (!stopping.aborted) options.onRefused(error)
      })
      .finally(() => clearTimeout(late))
  })
  return gate
}
