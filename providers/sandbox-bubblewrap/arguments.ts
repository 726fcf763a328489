import { dataLimit, type Folders } from '#local-sandboxes'
import type { Limits } from './limits.ts'
import { insideUser } from './system-files.ts'

/** What all sandboxes of this runner see of its machine. */
export interface View {
  /** Arguments for the operating system. */
  readonly system: readonly string[]
  /** Paths that are there inside as they are outside, to be read. */
  readonly read: readonly string[]
}

/** The places of a session as its worker sees them. */
export const places: Folders = { workspace: '/workspace', state: '/state' }

/** Like containers have it; programs that need more shared memory take `/tmp`. */
const sharedMemoryMb = 64

/** Arguments of bwrap up to the command: namespaces, no rights, and a file system put together from nothing. */
export function bwrapArguments(view: View, folders: Folders, limits: Pick<Limits, 'diskMb'>): string[] {
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
    // Before what is bound: the package may be somewhere in /tmp.
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

/** The limits of a process, and of the processes of its sandbox; put before a command inside. */
export const limitArguments = (limits: Pick<Limits, 'pids'> & { readonly memoryMb?: number }): string[] => [
  '/usr/bin/prlimit',
  `--nproc=${limits.pids}`,
  // 1 and not 0: with it the kernel starts no handler of core dumps either, which would run outside.
  '--core=1',
  ...(limits.memoryMb === undefined ? [] : [dataLimit(limits.memoryMb)]),
  '--',
]
