import { stat } from 'node:fs/promises'
import { setTimeout as wait } from 'node:timers/promises'
import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import { CommaList, Settings } from '#kernel'
import { defineSandboxProvider } from '#contracts/sandbox'
import { commandOf, Templates, workerEnvironment } from '../command.ts'
import { openHome } from '../home.ts'
import { createProvider, type LocalSandbox, type StartSandbox } from '../provider.ts'
import { CannotError, type Machine, prepareMachine } from './machine.ts'
import { signalTree, stopTree, tailOf, treeOf } from '../processes.ts'
import { type Bwrap, bwrapArguments, limitArguments, places, startBwrap } from './bwrap.ts'
import { filesNamedIn } from './files.ts'
import { type LimitSettings, limitsOf, watchMemory } from './limits.ts'
import { addressOf, insideUrl, relay } from './relay.ts'

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
      if (cgroups)
        cleanups.push(await cgroups.contain(order.name, [bwrap.child.pid!, init, ...bwrap.processes()], limits))
      else {
        const exceeded = (): void => {
          log.warn({ sandboxId: order.name, memoryMb: limits.memoryMb }, 'a sandbox exceeded its memory limit')
          stop()
        }
        cleanups.push(watchMemory(init, limits.memoryMb, exceeded))
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
      if (bwrap.lives()) signalTree(treeOf(init), 'SIGCONT')
      paused = false
    },
    async end() {
      if (!paused) {
        signalTree(bwrap.processes(), 'SIGTERM')
        await Promise.race([ended, wait(graceMs, undefined, { ref: false })])
      }
      await bwrap.kill()
      await ended
    },
  }
}
