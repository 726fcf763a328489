import { randomInt } from 'node:crypto'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Home } from '../home.ts'
import { tailOf } from '../processes.ts'
import { bwrapArguments, entryFile, limitArguments, startBwrap, type View } from './bwrap.ts'
import { packageFiles, systemFiles } from './files.ts'
import { type Cgroups, openCgroups } from './limits.ts'
import { filterFor } from './seccomp.ts'

/** What this machine provides for sandboxes. */
export interface Machine {
  readonly view: View
  /** A file with the system call filter. */
  readonly filter: string
  readonly drawUser: (() => number) | undefined
  readonly cgroups: Cgroups | undefined
}

interface MachineSettings {
  readonly cgroup: string | undefined
  /** Further paths that workers may read. */
  readonly read: readonly string[]
}

/** Why this machine cannot run sandboxes: a sentence for the operator. */
export class CannotError extends Error {}

/** Milliseconds that the trial sandbox may take to start. */
const trialMs = 20_000
/** Enough for Node and for the trial command. */
const trialLimits = { pids: 64, diskMb: 1 }

/** Detects what this machine provides, and starts a trial sandbox. */
export async function prepareMachine(home: Home, { cgroup, read }: MachineSettings): Promise<Machine> {
  const filter = filterFor(process.arch)
  if (!filter) throw new CannotError(`there is no filter of system calls for the architecture ${process.arch}`)
  const filterFile = join(home.path, 'filter')
  await writeFile(filterFile, filter, { mode: 0o644 })
  const system = await systemFiles(join(home.path, 'etc'))
  const machine = {
    view: { system, read: [...new Set([...(await packageFiles()), entryFile, ...read])] },
    filter: filterFile,
    drawUser: await drawHostUser(),
    cgroups: cgroup ? await openCgroups(cgroup).catch(cannot) : undefined,
  }
  await tryOut(home, machine)
  return machine
}

const cannot = (error: Error): never => {
  throw new CannotError(error.message, { cause: error })
}

/** Everything that a launch needs, with a command that must not be able to start a process. */
async function tryOut(home: Home, { view, filter, drawUser, cgroups }: Machine): Promise<void> {
  const uid = drawUser?.()
  // In a user namespace even root may have no second user id to which the folders could belong.
  const folders = await home.folders('trial', uid).catch(cannot)
  const args = bwrapArguments(view, folders, trialLimits)
  const bwrap = startBwrap({ args, limits: limitArguments(trialLimits), filter, uid })
  const tail = tailOf([bwrap.child.stdout, bwrap.child.stderr])
  const impatience = setTimeout(() => void bwrap.kill(), trialMs)
  bwrap.listening.then(
    (server) => {
      server.close()
      bwrap.become(['/usr/bin/prlimit', '--nproc=1', '/bin/sh', '-c', '(exit 0) & wait $! && echo started'], {})
    },
    () => {},
  )
  const { code, error } = await bwrap.ended
  clearTimeout(impatience)
  await home.remove('trial')
  if (error?.code === 'ENOENT') throw new CannotError('there is no bwrap: install bubblewrap 0.8 or newer')
  if (code === 0 && !cgroups) {
    throw new CannotError('this kernel does not bound the processes of a sandbox: give the provider a cgroup')
  }
  const began = await bwrap.listening.then(
    () => true,
    () => false,
  )
  if (!began) throw new CannotError(`a trial fails with '${error?.message ?? tail()}': ${advice(uid)}`)
}

const advice = (uid: number | undefined): string =>
  'bubblewrap 0.8 or newer has to be installed, and the system has to allow user namespaces to everybody' +
  (uid === undefined
    ? ''
    : '; Node and the package must be readable for everybody, since sandboxes of root are not root')

/**
 * Unused user ids: systemd's list of uid ranges marks them as unused, and no distribution assigns them. The range of systemd-nspawn's containers
 * ends below them.
 */
const firstUser = 0x7000_0000
const users = 2 ** 26

/**
 * Draws a host user id for a sandbox when the runner is root. Inside a user namespace root would stay root for the kernel, which then limits no
 * processes and allows writing `/proc/sys`. An ordinary runner needs no such id: to the host, its sandboxes run as the runner's user.
 */
async function drawHostUser(): Promise<(() => number) | undefined> {
  if (process.getuid?.() !== 0) return undefined
  const rows = (await readFile('/proc/self/uid_map', 'utf8')).trim().split('\n')
  const isRoot = rows.some((row) => /^\s*0\s+0\s/.test(row))
  return isRoot ? () => firstUser + randomInt(users) : undefined
}
