import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as wait } from 'node:timers/promises'
import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import { Settings } from '#kernel'
import { defineSandboxProvider, invalidSandbox, type SandboxResources } from '#contracts/sandbox'
import { commandOf, dataLimit, Templates, workerEnvironment } from '../command.ts'
import { openHome } from '../home.ts'
import { signalTree, stopTree, tailOf, treeOf } from '../processes.ts'
import { createProvider, type LocalSandbox, type StartSandbox } from '../provider.ts'

/** Runs workers as plain child processes of the runner, for development. It isolates nothing, so the operator must allow it explicitly. */
export default defineSandboxProvider({
  name: 'process',
  config: Settings({
    allow: Type.Boolean({
      default: false,
      description: 'Workers then run as the user of the runner, with its files and its network.',
    }),
    dir: Type.Optional(
      Type.String({
        description: 'A folder for the workspaces of sessions; by default the temporary folder of the system.',
      }),
    ),
    templates: Templates,
  }),
  async create({ config, log, onStop }) {
    if (!config.allow) return undefined
    log.warn(
      "the sandbox provider 'process' is switched on. It isolates nothing: what an agent does in such a sandbox it does as the user " +
        'of this process, with its files, its network and its keys. For development, where every tenant and every prompt is trusted',
    )
    const home = await openHome({ dir: config.dir || undefined })
    const start = createStarter({ templates: config.templates, log, prlimit: await canLimit() })
    const provider = createProvider(home, start)
    onStop(() => provider.stop())
    return provider
  },
})

interface StarterOptions {
  readonly templates: Readonly<Record<string, readonly string[]>>
  readonly log: FastifyBaseLogger
  readonly prlimit: boolean
}

/** The worker waits for a line on its standard input. If the runner dies before, the input closes and the worker never starts. */
const gate = 'read -r go || exit 1; exec "$@" </dev/null'

function createStarter({ templates, log, prlimit }: StarterOptions): StartSandbox {
  return async (order, places, signal) => {
    const command = [...limited(order.resources, prlimit), ...commandOf(order, templates)]
    const folders = await places.folders()
    signal.throwIfAborted()
    const child = spawn('/bin/sh', ['-c', gate, 'worker', ...command], {
      cwd: folders.workspace,
      env: workerEnvironment(order, order.runnerUrl, folders),
      // A separate process group: terminal signals for the runner do not reach it, and the whole group can be signalled at once.
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
    // The process could not be started.
    child.once('error', () => resolve({ code: null, signal: null }))
  })

/** Milliseconds that a worker may take to end by itself. Its runner has asked it before. */
const graceMs = 2_000

/** The process group of a worker, and all descendants of the worker. */
function sandboxOf(worker: ChildProcess, workerEnded: Promise<unknown>): LocalSandbox {
  const pid = worker.pid!
  let paused = false
  // Once the worker has ended, its process id may belong to another process.
  const lives = (): boolean => worker.exitCode === null && worker.signalCode === null
  // Kill also the processes that the worker left in its group.
  const ended = workerEnded.then(() => signalTree([-pid], 'SIGKILL'))
  return {
    ended,
    async pause() {
      if (!lives()) return
      signalTree([-pid], 'SIGSTOP')
      await stopTree(pid)
      paused = true
    },
    async resume() {
      const known = lives() ? await treeOf(pid) : []
      if (lives()) signalTree([-pid, ...known], 'SIGCONT')
      paused = false
    },
    async end() {
      if (!lives()) return ended
      const known = await treeOf(pid)
      if (!paused) {
        signalTree(known, 'SIGTERM')
        await Promise.race([ended, wait(graceMs, undefined, { ref: false })])
      }
      // `known` has descendants that left the group, and whose parents may have ended meanwhile.
      const left = lives() ? await treeOf(pid) : []
      signalTree([...(lives() ? [-pid, ...left] : []), ...known], 'SIGKILL')
      await ended
    },
  }
}

/**
 * `read` returns when our end of the pipe closes, even after kill -9. The script then kills the worker's group and all descendants. A parent-death
 * signal would reach only the worker, not the processes that it started.
 */
const guardScript = `read -r _
tree() { for pid in $(cat /proc/"$1"/task/*/children 2>/dev/null); do tree "$pid"; done; echo "$1"; }
kill -KILL -"$1" $(tree "$1") 2>/dev/null`

interface Guard {
  /** Called when the worker has ended: its process id may soon belong to another process. */
  end(): void
}

/** Starts a shell that kills the worker if this process dies. */
function startGuard(pid: number): Guard {
  const guard = spawn('/bin/sh', ['-c', guardScript, 'guard', String(pid)], {
    cwd: '/',
    env: { PATH: '/usr/bin:/bin' },
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  guard.stdin.on('error', () => {})
  guard.on('error', () => {})
  return {
    end() {
      guard.kill('SIGKILL')
      guard.stdin.destroy()
    },
  }
}

/** Whether this machine has `prlimit` (util-linux). */
const canLimit = (): Promise<boolean> =>
  new Promise((done) => {
    execFile('/usr/bin/prlimit', ['--data=unlimited', '/bin/true'], { env: {} }, (error) => done(!error))
  })

/**
 * The command prefix that sets the limits. Memory is limited per process. The number of processes is not limited, because such a limit would count
 * all processes of the user.
 */
function limited(resources: SandboxResources, prlimit: boolean): readonly string[] {
  const { memoryMb, ...rest } = resources
  const [unknown] = Object.entries(rest).flatMap(([name, value]) => (value === undefined ? [] : [name]))
  if (unknown !== undefined) {
    throw invalidSandbox(
      `The sandbox provider 'process' cannot limit ${unknown}: leave it out, or use another provider.`,
    )
  }
  if (memoryMb === undefined) return []
  if (!prlimit) throw invalidSandbox('This runner cannot limit memoryMb: there is no prlimit (util-linux).')
  return ['/usr/bin/prlimit', dataLimit(memoryMb), '--']
}
