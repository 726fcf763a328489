// A real PostgreSQL from npm, for development and tests.
import type { ChildProcess } from 'node:child_process'
import { rm } from 'node:fs/promises'
import { resolve } from 'node:path'
import pg from 'pg'
import { findBinaries } from './binaries.ts'
import { awaitUnused, cannotRun, ensureCluster, socketDirectory, superuser } from './data-directory.ts'
import { chooseLaunch, exited, interrupt, launch, type Launch } from './launch.ts'

/** The application's role and database: no superuser, so row security holds for it. */
const application = 'agent_orc'

export interface PostgresOptions {
  /** Kept between starts; created on first use. */
  readonly dataDir: string
  /** Told each line that the server logs. */
  readonly log?: (line: string) => void
  /** Server settings, e.g. `{ fsync: 'off' }` for tests. Default: crash-safe, socket only. */
  readonly settings?: Readonly<Record<string, string>>
}

export interface PostgresServer {
  /** For the application's role, which owns the database `agent_orc` and is no superuser. */
  dsn(database?: string): string
  /** For the superuser: only to create databases and roles. */
  adminDsn(database?: string): string
  /** Rolls back what is open, closes the files properly, and resolves when the server is gone. */
  stop(): Promise<void>
  /** Lets this process end while the server runs; the server then stops with it. */
  unref(): void
}

/** Starts PostgreSQL on a data directory, and resolves when it accepts connections. It never outlives this process. */
export async function startPostgres(options: PostgresOptions): Promise<PostgresServer> {
  const dataDir = resolve(options.dataDir)
  const settings = { listen_addresses: '', timezone: 'UTC', log_timezone: 'UTC', ...options.settings }
  const [binaries, how] = await Promise.all([findBinaries(), chooseLaunch()])
  await awaitUnused(dataDir)
  await ensureCluster(dataDir, binaries, how, options.settings?.['fsync'] !== 'off')
  const socket = await socketDirectory(dataDir, how)
  const set = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
  const child = launch(how, binaries.postgres, ['-D', dataDir, '-k', socket.path, ...set])
  const ended = exited(child, options.log).then(async (end) => {
    if (socket.temporary) await rm(socket.path, { recursive: true, force: true })
    return end
  })
  let stopping: Promise<void> | undefined
  const stop = (): Promise<void> => (stopping ??= shutDown(how, child, ended))
  const url = (user: string, database: string): string =>
    `postgres://${user}@localhost/${encodeURIComponent(database)}?host=${encodeURIComponent(socket.path)}`
  const server: PostgresServer = {
    dsn: (database = application) => url(application, database),
    adminDsn: (database = 'postgres') => url(superuser, database),
    stop,
    unref() {
      child.unref()
      for (const pipe of [child.stdin, child.stderr]) (pipe as { unref?(): void } | null)?.unref?.()
    },
  }
  try {
    await ready(child, ended, how)
    await createApplication(server.adminDsn())
  } catch (error) {
    await stop()
    throw error
  }
  return server
}

async function ready(child: ChildProcess, ended: ReturnType<typeof exited>, how: Launch): Promise<void> {
  const accepting = new Promise<void>((resolve) => {
    const look = (text: string): void => {
      if (!text.includes('database system is ready to accept connections')) return
      child.stderr?.off('data', look)
      resolve()
    }
    child.stderr?.on('data', look)
  })
  const end = await Promise.race([accepting, ended])
  if (!end) return
  // Another process took the directory between our look at its lock and now: PostgreSQL names the pid.
  const pid = /another postmaster \(PID (\d+)\)/.exec(end.output)?.[1]
  throw new Error(
    pid
      ? `The data directory is in use by another PostgreSQL (pid ${pid}): stop it, or name another data directory.`
      : cannotRun(how, end.output),
  )
}

/** Creates what is missing, so a first start that was interrupted half-way is completed by the next one. */
async function createApplication(adminDsn: string): Promise<void> {
  const client = new pg.Client({ connectionString: adminDsn })
  await client.connect()
  try {
    const { rows } = await client.query<{ role: boolean; database: boolean }>(
      `SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1) AS role,
              EXISTS (SELECT FROM pg_database WHERE datname = $1) AS database`,
      [application],
    )
    if (!rows[0]!.role) await client.query(`CREATE ROLE ${application} LOGIN NOSUPERUSER NOBYPASSRLS`)
    if (!rows[0]!.database) await client.query(`CREATE DATABASE ${application} OWNER ${application}`)
  } finally {
    await client.end()
  }
}

async function shutDown(how: Launch, child: ChildProcess, ended: Promise<unknown>): Promise<void> {
  interrupt(how, child)
  // An immediate shutdown when a session does not let go; crash recovery repairs the files at the next start.
  const impatient = setTimeout(() => child.kill('SIGQUIT'), 10_000)
  await ended
  clearTimeout(impatient)
}
