import { stat } from 'node:fs/promises'
import { setTimeout as wait } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { commandOf, workerEnvironment } from '../command.ts'
import { signalTree, stopTree, tailOf, treeOf } from '../processes.ts'
import type { LocalSandbox, StartSandbox } from '../provider.ts'
import { type Bwrap, bwrapArguments, limitArguments, places, startBwrap } from './bwrap.ts'
import { filesNamedIn } from './files.ts'
import { type LimitSettings, limitsOf, watchMemory } from './limits.ts'
import type { Machine } from './machine.ts'
import { addressOf, insideUrl, relay } from './relay.ts'

export interface StarterOptions {
  readonly machine: Machine
  readonly templates: Readonly<Record<string, readonly string[]>>
  readonly limits: LimitSettings
  readonly log: FastifyBaseLogger
}

export function createStarter({ machine, templates, limits: settings, log }: StarterOptions): StartSandbox {
  const { view, filter, drawUser, cgroups } = machine
  return async (order, session, signal) => {
    const command = commandOf(order, templates)
    const limits = limitsOf(order.resources, settings, cgroups !== undefined)
    const runner = addressOf(order.runnerUrl)
    const runnerUrl = insideUrl(order.runnerUrl)
    const folders = await session.folders(drawUser?.())
    const read = [...view.read, ...(await filesNamedIn(command))]
    // A session's folders keep the user that they were made for.
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
          log.warn({ sandboxId: order.name, memoryMb: limits.memoryMb }, 'a sandbox took more memory than it may')
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
      // This removes what was set up after the sandbox had ended.
      await cleanUp()
      signal.throwIfAborted()
      throw new Error(`The sandbox did not start: ${tail() || 'it says nothing'}`, { cause })
    } finally {
      signal.removeEventListener('abort', stop)
    }
  }
}

/** How long a worker may take to end by itself; its runner has asked it before. */
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
