import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import type { FastifyBaseLogger } from 'fastify'
import { commandOf, type StartSandbox, tailOf, workerEnvironment } from '#local-sandboxes'
import { startGuard } from './guard.ts'
import { limited } from './limits.ts'
import { sandboxOf } from './sandbox.ts'

export interface StarterOptions {
  readonly templates: Readonly<Record<string, readonly string[]>>
  readonly log: FastifyBaseLogger
  readonly prlimit: boolean
}

/** The worker begins when it is told to; without a word, for the runner died, it never does. */
const gate = 'read -r go || exit 1; exec "$@" </dev/null'

export function createStarter({ templates, log, prlimit }: StarterOptions): StartSandbox {
  return async (order, places, signal) => {
    const command = [...limited(order.resources, prlimit), ...commandOf(order, templates)]
    const folders = await places.folders()
    signal.throwIfAborted()
    const child = spawn('/bin/sh', ['-c', gate, 'worker', ...command], {
      cwd: folders.workspace,
      env: workerEnvironment(order, order.runnerUrl, folders),
      // A process group of its own: what a terminal sends to the runner does not reach it, and all of it can be signalled.
      detached: true,
      stdio: ['pipe', 'pipe', 'pipe'],
    })
    const tail = tailOf([child.stdout, child.stderr])
    const ended = endOf(child)
    await once(child, 'spawn')
    const guard = startGuard(child.pid!)
    const sandbox = sandboxOf(
      child,
      ended.finally(() => guard.end()),
    )
    let asked = false
    void ended.then((how) => {
      if (!asked) log.info({ sandboxId: order.name, ...how, output: tail() }, 'the worker of a sandbox ended by itself')
    })
    const end = (): Promise<void> => {
      asked = true
      return sandbox.end()
    }
    child.stdin.on('error', () => {})
    if (signal.aborted) {
      await end()
      throw signal.reason
    }
    child.stdin.end('go\n')
    return { ...sandbox, end }
  }
}

const endOf = (child: ChildProcess): Promise<{ code: number | null; signal: NodeJS.Signals | null }> =>
  new Promise((resolve) => {
    child.once('exit', (code, signal) => resolve({ code, signal }))
    // It never was.
    child.once('error', () => resolve({ code: null, signal: null }))
  })
