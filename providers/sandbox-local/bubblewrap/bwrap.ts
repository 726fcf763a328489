import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, openSync } from 'node:fs'
import type { Server } from 'node:net'
import type { Readable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { dataLimit } from '../command.ts'
import type { Folders } from '../home.ts'
import { signalTree, treeOf } from '../processes.ts'
import { insideUser } from './files.ts'
import type { SandboxLimits } from './limits.ts'
import { runnerPort } from './relay.ts'

export const entryFile = fileURLToPath(new URL('./inside/entry.js', import.meta.url))

/** The file descriptors that bwrap gets in addition to the standard three. Descriptor 3 is Node's IPC channel. */
const infoFd = 4
const filterFd = 5

export interface End {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  /** Set when the process could not be started at all. */
  readonly error?: NodeJS.ErrnoException
}

export interface Bwrap {
  readonly child: ChildProcess
  /** The host's process id of the sandbox's first process. Rejects when the sandbox ends earlier. */
  readonly init: Promise<number>
  /** A socket that listens inside the sandbox. Rejects when the sandbox ends earlier. */
  readonly listening: Promise<Server>
  /** Resolves when no process of the sandbox runs. */
  readonly ended: Promise<End>
  /** True while the sandbox runs. Its process ids are valid only then; afterwards they may belong to other processes. */
  lives(): boolean
  /** All processes in the sandbox except the first, which only waits for the others. */
  processes(): Promise<number[]>
  /** Replaces its first program with the worker, which gets this environment and nothing else. */
  become(command: readonly string[], env: Readonly<Record<string, string>>): void
  /** Kills the first process; the kernel then kills all others of its namespace. Resolves once the signal is sent. */
  kill(): Promise<void>
}

interface BwrapOptions {
  /** The arguments of bwrap before the command. */
  readonly args: readonly string[]
  /** A command prefix that limits the first program. */
  readonly limits: readonly string[]
  /** A file with the system call filter. */
  readonly filter: string
  readonly uid: number | undefined
}

/** Starts a sandbox with our own first program, which waits for a message before it becomes the worker. */
export function startBwrap({ args, limits, filter, uid }: BwrapOptions): Bwrap {
  const entry = [process.execPath, '--disable-warning=ExperimentalWarning', entryFile, String(runnerPort)]
  const own = ['--info-fd', String(infoFd), '--seccomp', String(filterFd)]
  const filterFile = openSync(filter, 'r')
  const child = spawn('bwrap', [...args, ...own, '--', ...limits, ...entry], {
    cwd: '/',
    // The sandbox can read the environment of bwrap, so that environment has only a PATH.
    env: { PATH: '/usr/bin:/bin' },
    // Detached, so that terminal signals for the runner do not reach the sandbox.
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe', 'ipc', 'pipe', filterFile],
    ...(uid === undefined ? {} : { uid, gid: uid }),
  })
  closeSync(filterFile)
  const ended = new Promise<End>((resolve) => {
    child.once('exit', (code, signal) => resolve({ code, signal }))
    child.on('error', (error) => child.pid === undefined && resolve({ code: null, signal: null, error }))
  })
  const unlessEnded = <T>(wanted: (resolve: (value: T) => void) => void): Promise<T> => {
    const promise = new Promise<T>((resolve, reject) => {
      wanted(resolve)
      void ended.then(({ error }) => reject(error ?? new Error('the sandbox has ended')))
    })
    promise.catch(() => {})
    return promise
  }
  let first: number | undefined
  const lives = (): boolean => child.pid !== undefined && child.exitCode === null && child.signalCode === null
  const init = unlessEnded<number>((resolve) => {
    let text = ''
    // The stream is absent when the process could not be started at all.
    const info = child.stdio[infoFd] as Readable | null
    info?.on('error', () => {})
    info?.on('data', (chunk: Buffer) => {
      text += chunk.toString()
      first = Number(/"child-pid":\s*(\d+)\D/.exec(text)?.[1] ?? Number.NaN) || undefined
      if (first !== undefined) resolve(first)
    })
  })
  return {
    child,
    init,
    ended,
    lives,
    listening: unlessEnded((resolve) => {
      child.once('message', (_message, server) => resolve(server as Server))
    }),
    async processes() {
      const tree = first === undefined || !lives() ? [] : await treeOf(first)
      return lives() ? tree.slice(1) : []
    },
    become(command, env) {
      // A broken channel means that the sandbox has ended, which is reported elsewhere.
      child.send({ command, env }, () => {})
    },
    async kill() {
      const pid = await init.catch(() => undefined)
      if (lives() && pid !== undefined) signalTree([pid], 'SIGKILL')
    },
  }
}

/** What every sandbox of this runner sees of the machine. */
export interface View {
  /** The arguments of bwrap that bind the operating system. */
  readonly system: readonly string[]
  /** Paths that are readable inside under their outside names. */
  readonly read: readonly string[]
}

/** The folders of a session as its worker sees them. */
export const places: Folders = { workspace: '/workspace', state: '/state' }

/** The usual size in containers; programs that need more shared memory use `/tmp`. */
const sharedMemoryMb = 64

/** The arguments of bwrap before the command: namespaces, no privileges, and a minimal file system. */
export function bwrapArguments(view: View, folders: Folders, limits: Pick<SandboxLimits, 'diskMb'>): string[] {
  const identity = ['--unshare-all', '--unshare-user', '--disable-userns', '--hostname', 'sandbox']
  const user = ['--uid', String(insideUser), '--gid', String(insideUser), '--cap-drop', 'ALL']
  const life = ['--die-with-parent', '--new-session']
  const devices = ['--proc', '/proc', '--dev', '/dev', ...tmpfs('/dev/shm', sharedMemoryMb), '--remount-ro', '/dev']
  const temporary = [...tmpfs('/tmp', limits.diskMb), '--symlink', '../tmp', '/var/tmp']
  const read = view.read.flatMap((path) => ['--ro-bind', path, path])
  const own = Object.entries(places).flatMap(([name, inside]) => ['--bind', folders[name as keyof Folders], inside])
  return [
    ...identity,
    ...user,
    ...life,
    ...view.system,
    ...devices,
    // Place this before the bound folders, because the package may be somewhere in /tmp.
    ...temporary,
    ...read,
    ...own,
    '--remount-ro',
    '/',
    '--chdir',
    places.workspace,
  ]
}

const tmpfs = (path: string, mb: number): string[] =>
  `--size ${mb * 1024 * 1024} --perms 1777 --tmpfs ${path}`.split(' ')

/** A command prefix that limits one process and the number of processes in its sandbox. It is used inside the sandbox. */
export const limitArguments = (limits: Pick<SandboxLimits, 'pids'> & { readonly memoryMb?: number }): string[] => [
  '/usr/bin/prlimit',
  `--nproc=${limits.pids}`,
  // 1 and not 0: with 1 the kernel also starts no handler for core dumps, which would run outside of the sandbox.
  '--core=1',
  ...(limits.memoryMb === undefined ? [] : [dataLimit(limits.memoryMb)]),
  '--',
]
