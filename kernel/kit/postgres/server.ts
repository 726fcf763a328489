// A real PostgreSQL from npm, for development and tests.
import { type ChildProcess, execFile } from 'node:child_process'
import { chmod, chown, lstat, mkdir, mkdtemp, readdir, readFile, rename, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import pg from 'pg'
import { type Binaries, chooseLaunch, exited, findBinaries, interrupt, launch, type Launch } from './launch.ts'

/** The application's role and database: no superuser, so row security holds for it. */
const application = 'agent_orc'
const superuser = 'postgres'
const major = '18'
// `sockaddr_un.sun_path` is 108 bytes on Linux and 104 on macOS, the closing NUL included.
const longestSocketPath = 103
const socketFile = '.s.PGSQL.5432'

/**
 * Megabytes of a file of the write-ahead log. Until the first checkpoint there are no files to use again, so each is made and filled with zeros by
 * whoever writes into it first, and every commit waits meanwhile: 20 to 80 ms for one of the usual 16 MB.
 */
const logFileMb = 2
/** PostgreSQL's defaults, some of which would otherwise be smaller with smaller files. */
const logSizes = { min_wal_size: '80MB', max_wal_size: '1GB', wal_buffers: '4MB' }

export interface PostgresOptions {
  /** The directory is created on first use and kept between starts. */
  readonly dataDir: string
  /** Called with each line that the server logs. */
  readonly log?: (line: string) => void
  /** Server settings, e.g. `{ fsync: 'off' }` for tests. Default: crash-safe, socket only. */
  readonly settings?: Readonly<Record<string, string>>
}

export interface PostgresServer {
  /** The DSN of the application's role, which owns the database `agent_orc` and is no superuser. */
  dsn(database?: string): string
  /** The DSN of the superuser, for creating databases and roles only. */
  adminDsn(database?: string): string
  /** Rolls back open transactions, closes the files properly, and resolves when the server is gone. */
  stop(): Promise<void>
  /** Lets this process end while the server runs. The server then stops too. */
  unref(): void
}

/** Starts PostgreSQL on a data directory, and resolves when it accepts connections. It never outlives this process. */
export async function startPostgres(options: PostgresOptions): Promise<PostgresServer> {
  const dataDir = resolve(options.dataDir)
  const settings = { listen_addresses: '', timezone: 'UTC', log_timezone: 'UTC', ...logSizes, ...options.settings }
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
  // Another process took the directory after our check of its lock. PostgreSQL names the pid.
  const pid = /another postmaster \(PID (\d+)\)/.exec(end.output)?.[1]
  throw new Error(
    pid
      ? `The data directory is in use by another PostgreSQL (pid ${pid}): stop it, or name another data directory.`
      : cannotRun(how, end.output),
  )
}

/** Creates what is missing, so that the next start completes a first start that was interrupted. */
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
  // Shut down immediately if a session does not end. Crash recovery repairs the files at the next start.
  const impatient = setTimeout(() => child.kill('SIGQUIT'), 10_000)
  await ended
  clearTimeout(impatient)
}

/** Creates the cluster on first use. It is built next to the directory and renamed, so that a crash leaves no partial cluster. */
async function ensureCluster(dataDir: string, binaries: Binaries, how: Launch, durable: boolean): Promise<void> {
  const version = await readFile(join(dataDir, 'PG_VERSION'), 'utf8').catch(() => undefined)
  if (version === undefined) await createCluster(dataDir, binaries, how, durable)
  else if (version.trim() !== major) {
    throw new Error(
      `${dataDir} was written by PostgreSQL ${version.trim()}, the embedded one is ${major}: dump and restore it, or use another directory.`,
    )
  } else await giveTo(dataDir, how.uid ?? process.getuid?.())
}

async function createCluster(dataDir: string, binaries: Binaries, how: Launch, durable: boolean): Promise<void> {
  const content = await readdir(dataDir).catch(() => [])
  if (content.length > 0) {
    throw new Error(
      `${dataDir} contains files but no PostgreSQL database: choose another directory, or empty this one.`,
    )
  }
  await mkdir(dirname(dataDir), { recursive: true })
  const partial = `${dataDir}.partial-${process.pid}`
  await rm(partial, { recursive: true, force: true })
  await mkdir(partial, { mode: 0o700 })
  if (how.uid !== undefined) await chown(partial, how.uid, how.uid)
  // By default only the socket exists, and its directory is private to this user, so `trust` needs no password.
  const locale = ['--encoding=UTF8', '--locale-provider=builtin', '--builtin-locale=C.UTF-8', '--locale=C']
  const access = [`--username=${superuser}`, '--auth-local=trust', '--auth-host=reject']
  const files = [`--wal-segsize=${logFileMb}`, ...(durable ? [] : ['--no-sync'])]
  const child = launch(how, binaries.initdb, ['--pgdata', partial, ...access, ...locale, ...files])
  try {
    const { code, output } = await exited(child)
    if (code !== 0) throw new Error(cannotRun(how, output))
    await rename(partial, dataDir)
  } finally {
    await rm(partial, { recursive: true, force: true })
  }
}

/** The sentence for a PostgreSQL that cannot run at all. */
function cannotRun(how: Launch, output: string): string {
  const root =
    how.uid === undefined
      ? ''
      : ` It refuses to run as root, this kernel forbids user namespaces, and uid ${how.uid} did not get through either:` +
        ' run as an ordinary user, allow user namespaces, or set POSTGRES_DSN to another server.'
  return `The embedded PostgreSQL does not start.${root} It says: ${output.trim() || 'nothing'}`
}

/** Sets the owner to the uid that PostgreSQL runs under, which depends on what the machine allows. */
async function giveTo(dataDir: string, uid: number | undefined): Promise<void> {
  if (uid === undefined || process.getuid?.() !== 0 || (await lstat(dataDir)).uid === uid) return
  for (const name of ['', ...(await readdir(dataDir, { recursive: true }))]) await chown(join(dataDir, name), uid, uid)
}

/**
 * Refuses a directory that another server uses, waits for a server that is stopping because its parent was just killed, and removes the lock of a
 * server that is gone. PostgreSQL itself fails when the old pid now belongs to another program.
 */
async function awaitUnused(dataDir: string): Promise<void> {
  const lock = join(dataDir, 'postmaster.pid')
  for (let attempt = 0; ; attempt++) {
    const pid = Number((await readFile(lock, 'utf8').catch(() => '')).split('\n')[0])
    if (!(pid > 0)) return
    if (!(await isServerOf(pid, dataDir))) return rm(lock, { force: true })
    if (attempt === 40) {
      throw new Error(
        `${dataDir} is in use by another PostgreSQL (pid ${pid}): stop it, or name another data directory.`,
      )
    }
    await sleep(50)
  }
}

async function isServerOf(pid: number, dataDir: string): Promise<boolean> {
  const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() =>
    promisify(execFile)('/bin/ps', ['-o', 'command=', '-p', String(pid)]).then(
      ({ stdout }) => stdout,
      () => '',
    ),
  )
  return command.replaceAll('\0', ' ').includes(` -D ${dataDir} -k `)
}

/** The directory of the socket: beside the data, or a short temporary one when its path would be too long for the kernel. */
async function socketDirectory(dataDir: string, how: Launch): Promise<{ path: string; temporary: boolean }> {
  const beside = `${dataDir}.socket`
  const temporary = Buffer.byteLength(join(beside, socketFile)) > longestSocketPath
  if (!temporary) await mkdir(beside, { recursive: true, mode: 0o700 })
  const path = temporary ? await mkdtemp(join(tmpdir(), 'ao-pg-')) : beside
  await chmod(path, 0o700)
  if (how.uid !== undefined) await chown(path, how.uid, how.uid)
  return { path, temporary }
}
