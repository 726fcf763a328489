import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { defineSandboxProvider, invalidSandbox, sandboxGone } from 'agent-orc/contracts/sandbox'

interface Box {
  readonly child: ChildProcess
  readonly home: string
  paused: boolean
}

/** Workers as plain processes of this machine: all of the contract, and no isolation. A profile uses it with `sandbox: { provider: plain }`. */
export default defineSandboxProvider({
  name: 'plain',
  async create(ctx) {
    const folder = await mkdtemp(join(tmpdir(), 'plain-sandbox-'))
    const boxes = new Map<string, Box>()

    const isAlive = ({ child }: Box): boolean => child.pid !== undefined && child.exitCode === null && !child.signalCode
    // A minus before the pid: the worker and all that it has started.
    const signalAll = ({ child }: Box, signal: NodeJS.Signals): void => {
      try {
        process.kill(-child.pid!, signal)
      } catch {
        // The processes are gone already.
      }
    }
    const alive = (id: string): Box => {
      const box = boxes.get(id)
      if (!box || !isAlive(box)) throw sandboxGone()
      return box
    }
    const end = async (box: Box): Promise<void> => {
      if (isAlive(box)) {
        const exit = once(box.child, 'exit')
        signalAll(box, 'SIGKILL')
        await exit
      }
      signalAll(box, 'SIGKILL')
      await rm(box.home, { recursive: true, force: true })
    }
    ctx.onStop(async () => {
      await Promise.all([...boxes.values()].map(end))
      await rm(folder, { recursive: true, force: true })
    })

    return {
      contract: 'sandbox/1',

      // Resolve when the worker is on its way; it calls the runner by itself. What cannot be had is refused, not ignored.
      async launch(order, signal) {
        if (order.template !== undefined) throw invalidSandbox(`There is no template '${order.template}'.`)
        if (Object.keys(order.resources).length > 0) throw invalidSandbox('A plain process has no limits.')
        signal.throwIfAborted()
        const home = join(folder, order.name)
        await mkdir(home)
        const [command = '', ...args] = order.command
        const places = { HOME: home, AGENT_ORC_WORKSPACE: home, AGENT_ORC_STATE_DIR: join(home, '.state') }
        // The environment is complete: nothing of the runner's own is added.
        const env = { PATH: '/usr/bin:/bin', ...places, ...order.env, AGENT_ORC_RUNNER_URL: order.runnerUrl }
        const child = spawn(command, args, { cwd: home, env, detached: true, stdio: 'ignore' })
        child.on('error', (err) => ctx.log.warn({ err }, 'a worker did not start'))
        const box: Box = { child, home, paused: false }
        if (signal.aborted) {
          await end(box)
          throw signal.reason
        }
        boxes.set(order.name, box)
        return { sandboxId: order.name }
      },
      async status(id) {
        const box = boxes.get(id)
        return !box || !isAlive(box) ? 'gone' : box.paused ? 'paused' : 'running'
      },
      async pause(id) {
        const box = alive(id)
        box.paused = true
        signalAll(box, 'SIGSTOP')
      },
      async resume(id) {
        const box = alive(id)
        box.paused = false
        signalAll(box, 'SIGCONT')
      },
      async destroy(id) {
        const box = boxes.get(id)
        if (!box) return
        await end(box)
        boxes.delete(id)
      },
    }
  },
})
