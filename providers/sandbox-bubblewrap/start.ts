import { stat } from 'node:fs/promises'
import type { FastifyBaseLogger } from 'fastify'
import { commandOf, type StartSandbox, tailOf, workerEnvironment } from '#local-sandboxes'
import { bwrapArguments, limitArguments, places, type View } from './arguments.ts'
import type { Cgroups } from './cgroup.ts'
import { startBwrap } from './launch.ts'
import { type LimitSettings, limitsOf } from './limits.ts'
import { watchMemory } from './memory-watch.ts'
import { filesNamedIn } from './package-files.ts'
import { addressOf, insideUrl, relay } from './relay.ts'
import { kill, sandboxOf } from './sandbox.ts'

/** What this machine has for sandboxes. */
export interface Machine {
  readonly view: View
  /** A file with the filter of system calls. */
  readonly filter: string
  readonly drawUser: (() => number) | undefined
  readonly cgroups: Cgroups | undefined
}

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
    const stop = (): void => void kill(bwrap)
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
      await kill(bwrap)
      await ended
      // What was taken after it had ended.
      await cleanUp()
      signal.throwIfAborted()
      throw new Error(`The sandbox did not start: ${tail() || 'it says nothing'}`, { cause })
    } finally {
      signal.removeEventListener('abort', stop)
    }
  }
}
