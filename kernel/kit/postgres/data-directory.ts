import { execFile } from 'node:child_process'
import { chmod, chown, lstat, mkdir, mkdtemp, readdir, readFile, rename, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import type { Binaries } from './binaries.ts'
import { exited, launch, type Launch } from './launch.ts'

export const superuser = 'postgres'
const major = '18'
// `sockaddr_un.sun_path` is 108 bytes on Linux and 104 on macOS, the closing NUL included.
const longestSocketPath = 103
const socketFile = '.s.PGSQL.5432'

/** Creates the cluster on first use. It is made beside the directory and renamed, so a crash leaves no half of one. */
export async function ensureCluster(dataDir: string, binaries: Binaries, how: Launch, durable: boolean): Promise<void> {
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
    throw new Error(`${dataDir} holds files but no PostgreSQL database: name another directory, or empty this one.`)
  }
  await mkdir(dirname(dataDir), { recursive: true })
  const partial = `${dataDir}.partial-${process.pid}`
  await rm(partial, { recursive: true, force: true })
  await mkdir(partial, { mode: 0o700 })
  if (how.uid !== undefined) await chown(partial, how.uid, how.uid)
  // Only the socket exists by default, and its directory is private to this user: `trust` needs no password to keep.
  const locale = ['--encoding=UTF8', '--locale-provider=builtin', '--builtin-locale=C.UTF-8', '--locale=C']
  const access = [`--username=${superuser}`, '--auth-local=trust', '--auth-host=reject']
  const sync = durable ? [] : ['--no-sync']
  const child = launch(how, binaries.initdb, ['--pgdata', partial, ...access, ...locale, ...sync])
  try {
    const { code, output } = await exited(child)
    if (code !== 0) throw new Error(cannotRun(how, output))
    await rename(partial, dataDir)
  } finally {
    await rm(partial, { recursive: true, force: true })
  }
}

/** The sentence for a PostgreSQL that does not run at all. */
export function cannotRun(how: Launch, output: string): string {
  const root =
    how.uid === undefined
      ? ''
      : ` It refuses to run as root, this kernel forbids user namespaces, and uid ${how.uid} did not get through either:` +
        ' run as an ordinary user, allow user namespaces, or set POSTGRES_DSN to another server.'
  return `The embedded PostgreSQL does not start.${root} It says: ${output.trim() || 'nothing'}`
}

/** The owner has to be the uid that PostgreSQL runs under, which changes with what the machine allows. */
async function giveTo(dataDir: string, uid: number | undefined): Promise<void> {
  if (uid === undefined || process.getuid?.() !== 0 || (await lstat(dataDir)).uid === uid) return
  for (const name of ['', ...(await readdir(dataDir, { recursive: true }))]) await chown(join(dataDir, name), uid, uid)
}

/**
 * Refuses a directory that another server uses, waits for one that is stopping (its parent was killed a moment ago), and
 * removes the lock of one that is gone: PostgreSQL itself stumbles when its old pid now belongs to another program.
 */
export async function awaitUnused(dataDir: string): Promise<void> {
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
export async function socketDirectory(dataDir: string, how: Launch): Promise<{ path: string; temporary: boolean }> {
  const beside = `${dataDir}.socket`
  const temporary = Buffer.byteLength(join(beside, socketFile)) > longestSocketPath
  if (!temporary) await mkdir(beside, { recursive: true, mode: 0o700 })
  const path = temporary ? await mkdtemp(join(tmpdir(), 'ao-pg-')) : beside
  await chmod(path, 0o700)
  if (how.uid !== undefined) await chown(path, how.uid, how.uid)
  return { path, temporary }
}
