import { readFile, stat, writeFile } from 'node:fs/promises'
import { setTimeout as wait } from 'node:timers/promises'
import { randomInt } from 'node:crypto'
import { join } from 'node:path'
import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import { CommaList, Settings } from '#kernel'
import { defineSandboxProvider } from '#contracts/sandbox'
import { commandOf, Templates, workerEnvironment } from '../command.ts'
import { type Home, openHome } from '../home.ts'
import { createProvider, type LocalSandbox, type StartSandbox } from '../provider.ts'
import { signalTree, stopTree, tailOf } from '../processes.ts'
import { type Bwrap, bwrapArguments, entryFile, limitArguments, places, startBwrap, type View } from './bwrap.ts'
import { filesNamedIn, packageFiles, systemFiles } from './files.ts'
import { type Cgroups, type LimitSettings, limitsOf, openCgroups } from './limits.ts'
import { MemoryWatch } from './memory.ts'
import { addressOf, insideUrl, relay } from './relay.ts'
import { filterFor } from './seccomp.ts'

const Megabytes = (fallback: number, description: string) =>
  Type.Integer({ minimum: 1, maximum: 1_048_576, default: fallback, description })

/** Runs workers in sandboxes on this machine, with limits, an own file system, and no network except the runner. */
export default defineSandboxProvider({
  name: 'bubblewrap',
  config: Settings({
    dir: Type.Optional(
      Type.String({
        description: 'A folder for the workspaces of sessions; by default the temporary folder of the system.',
      }),
    ),
    templates: Templates,
    read: CommaList('Further paths of this machine that workers may read, e.g. of plugins of your own.'),
    cgroup: Type.Optional(
      Type.String({
        description:
          'A cgroup v2 that is delegated to this runner, e.g. /sys/fs/cgroup/system.slice/runner.service. Bounds memory exactly, and cpus.',
      }),
    ),
    memoryMb: Megabytes(1024, 'Memory of a sandbox whose profile sets none.'),
    pids: Type.Integer({ minimum: 1, default: 256, description: 'Processes and threads, likewise.' }),
    diskMb: Megabytes(256, 'Size of /tmp, likewise. The workspace is bounded by the volume that its folder is on.'),
    mostMemoryMb: Megabytes(4096, 'The most that a profile may set.'),
    mostPids: Type.Integer({ minimum: 1, default: 2048, description: 'Likewise.' }),
    mostDiskMb: Megabytes(1024, 'Likewise. It is memory, too.'),
  }),
  async create({ config, log, onStop }) {
    const { dir, templates, read, cgroup, mostMemoryMb, mostPids, mostDiskMb, ...byDefault } = config
    const limits = { byDefault, most: { memoryMb: mostMemoryMb, pids: mostPids, diskMb: mostDiskMb } }
    const notOffered = (why: string): undefined => {
      log.warn(`the sandbox provider 'bubblewrap' is not offered: ${why}`)
    }
    if (process.platform !== 'linux') return notOffered(`it needs Linux, and this is ${process.platform}`)
    const home = await openHome({ dir: dir || undefined, passable: process.getuid?.() === 0 })
    try {
      const machine = await prepareMachine(home, { cgroup: cgroup || undefined, read })
      const provider = createProvider(home, createStarter({ machine, templates, limits, log }))
      onStop(() => provider.stop())
      return provider
    } catch (error) {
      await home.close()
      if (!(error instanceof CannotError)) throw error
      return notOffered(error.message)
    }
  },
})

interface StarterOptions {
  readonly machine: Machine
  readonly templates: Readonly<Record<string, readonly string[]>>
  readonly limits: LimitSettings
  readonly log: FastifyBaseLogger
}

function createStarter({ machine, templates, limits: settings, log }: StarterOptions): StartSandbox {
  const { view, filter, drawUser, cgroups } = machine
  const memory = new MemoryWatch()
  return async (order, session, signal) => {
    const command = commandOf(order, templates)
    const limits = limitsOf(order.resources, settings, cgroups !== undefined)
    const runner = addressOf(order.runnerUrl)
    const runnerUrl = insideUrl(order.runnerUrl)
    const folders = await session.folders(drawUser?.())
    const read = [...view.read, ...(await filesNamedIn(command))]
    // A session's folders keep the user for which they were made.
    const uid = drawUser && (await stat(folders.workspace)).uid
    signal.throwIfAborted()
    const bwrap = startBwrap({
      args: bwrapArguments({ ...view, read }, folders, limits),
      limits: limitArguments(cgroups ? { pids: limits.pids } : limits),
      filter,
      uid,
    })
    const tail = tailOf([bwrap.child.stdout, bwrap.child.stderr])
    const cleanups: (() => unknown)[] = []
    const cleanUp = async (): Promise<void> => {
      for (let next = cleanups.pop(); next; next = cleanups.pop()) await next()
    }
    let asked = false
    const ended = bwrap.ended.then(async (how) => {
      await cleanUp()
      if (!asked) log.info({ sandboxId: order.name, ...how, output: tail() }, 'the worker of a sandbox ended by itself')
    })
    const stop = (): void => void bwrap.kill()
    signal.addEventListener('abort', stop)
    try {
      const [init, server] = await Promise.all([bwrap.init, bwrap.listening])
      cleanups.push(relay(server, runner))
      if (cgroups) {
        const pids = [bwrap.child.pid!, init, ...(await bwrap.processes())]
        cleanups.push(await cgroups.contain(order.name, pids, limits))
      } else {
        const exceeded = (why: string): void => {
          log.warn({ sandboxId: order.name, memoryMb: limits.memoryMb }, `a sandbox was ended: ${why}`)
          stop()
        }
        cleanups.push(memory.watch({ tenantId: order.tenantId, root: init, limitMb: limits.memoryMb }, exceeded))
      }
      signal.throwIfAborted()
      if (!bwrap.lives()) throw new Error('the sandbox has ended')
      bwrap.become(command, workerEnvironment(order, runnerUrl, places))
      const sandbox = sandboxOf(bwrap, init, { runnerUrl, ended })
      const end = (): Promise<void> => {
        asked = true
        return sandbox.end()
      }
      return { ...sandbox, end }
    } catch (cause) {
      asked = true
      await bwrap.kill()
      await ended
      // The sandbox ended during the setup, so remove what was set up since.
      await cleanUp()
      signal.throwIfAborted()
      throw new Error(`The sandbox did not start: ${tail() || 'it wrote nothing'}`, { cause })
    } finally {
      signal.removeEventListener('abort', stop)
    }
  }
}

/** Milliseconds that a worker may take to end by itself. Its runner has asked it before. */
const graceMs = 2_000

/** The processes of a sandbox. `init` is the host's process id of its first one, from which all others descend. */
function sandboxOf(
  bwrap: Bwrap,
  init: number,
  { runnerUrl, ended }: Pick<LocalSandbox, 'runnerUrl' | 'ended'>,
): LocalSandbox {
  let paused = false
  return {
    ...(runnerUrl === undefined ? {} : { runnerUrl }),
    ended,
    async pause() {
      if (bwrap.lives()) await stopTree(init)
      paused = true
    },
    async resume() {
      signalTree(bwrap.lives() ? [init, ...(await bwrap.processes())] : [], 'SIGCONT')
      paused = false
    },
    async end() {
      if (!paused) {
        signalTree(await bwrap.processes(), 'SIGTERM')
        await Promise.race([ended, wait(graceMs, undefined, { ref: false })])
      }
      await bwrap.kill()
      await ended
    },
  }
}

/** What this machine provides for sandboxes. */
interface Machine {
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
class CannotError extends Error {}

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
