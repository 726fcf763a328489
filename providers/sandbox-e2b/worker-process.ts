import type * as E2b from 'e2b'
import type { FastifyBaseLogger } from 'fastify'
import { setTimeout as sleep } from 'node:timers/promises'
import { workerVariables } from '#contracts/wire/worker'
import { retry } from '#kit'
import type { StartedSandbox } from './api.ts'

/** Begins the script of our worker, and names it among the processes of its sandbox: the package gives them no tag. */
const mark = ': agent-orc-worker; '
const requestTimeoutMs = 10_000
/** A new sandbox may not be routed to yet. */
const waits = { firstMs: 250, longestMs: 250, withinMs: 30_000 }
/** How long a killed process may take to be gone. */
const endMs = 5_000
const lookMs = 50
/** A worker that ends this early never worked: most likely the template has none. */
const watchMs = 10_000
const maxOutput = 2_000

interface StartOptions {
  /** The sandbox has just been created: no worker runs there. */
  readonly fresh?: boolean
  readonly signal?: AbortSignal
}

interface WorkerProcessOptions {
  readonly e2b: Pick<typeof E2b, 'Sandbox' | 'CommandExitError' | 'AuthenticationError' | 'InvalidArgumentError'>
  /** How E2B is reached. */
  readonly connection: E2b.ConnectionOpts
  /** A command of the shell. */
  readonly command: string
  readonly log: FastifyBaseLogger
}

/**
 * A template's own start command runs when the template is built and is woken with it, so it never sees what a sandbox is
 * created for. The worker is therefore started by E2B's agent inside, with an environment that E2B itself does not keep.
 */
export class WorkerProcesses {
  readonly #options: WorkerProcessOptions
  readonly #script: string

  constructor(options: WorkerProcessOptions) {
    this.#options = options
    this.#script = `${mark}mkdir -p "$${workerVariables.workspace}" && ${options.command}`
  }

  /** Whether the worker of a sandbox runs. */
  async isRunning(sandbox: StartedSandbox, signal?: AbortSignal): Promise<boolean> {
    return (await this.#pids(this.#commandsOf(sandbox), signal)).length > 0
  }

  /** Starts the worker of a sandbox with this environment, after ending the one that may run there. */
  async start(
    sandbox: StartedSandbox,
    envs: Record<string, string>,
    { fresh = false, signal }: StartOptions = {},
  ): Promise<void> {
    const { AuthenticationError, InvalidArgumentError } = this.#options.e2b
    const commands = this.#commandsOf(sandbox)
    let clean = fresh
    const attempt = async (): Promise<void> => {
      if (!clean) await this.#endFormer(commands)
      // Before another attempt, too: this one may have started it.
      clean = false
      await this.#startOnce(sandbox.sandboxID, commands, envs)
    }
    const mayPass = (error: unknown): boolean =>
      !(error instanceof AuthenticationError || error instanceof InvalidArgumentError)
    await retry(attempt, { ...waits, signal, mayPass })
  }

  #commandsOf({ sandboxID, envdVersion, envdAccessToken, domain }: StartedSandbox): E2b.Commands {
    const { e2b, connection } = this.#options
    const { commands } = new e2b.Sandbox({
      ...connection,
      sandboxId: sandboxID,
      envdVersion,
      ...(envdAccessToken ? { envdAccessToken } : {}),
      ...(domain ? { sandboxDomain: domain } : {}),
    })
    return commands
  }

  async #pids(commands: E2b.Commands, signal?: AbortSignal): Promise<number[]> {
    const all = await commands.list({ requestTimeoutMs, ...(signal ? { signal } : {}) })
    return all.filter(({ args }) => args.at(-1)?.startsWith(mark)).map(({ pid }) => pid)
  }

  async #endFormer(commands: E2b.Commands): Promise<void> {
    const end = performance.now() + endMs
    for (;;) {
      const pids = await this.#pids(commands)
      if (pids.length === 0) return
      if (performance.now() > end) throw new Error('the former worker of the sandbox did not end')
      // One that ended between being found and being killed is no failure: it is looked again.
      await Promise.allSettled(pids.map((pid) => commands.kill(pid, { requestTimeoutMs })))
      await sleep(lookMs)
    }
  }

  async #startOnce(sandboxId: string, commands: E2b.Commands, envs: Record<string, string>): Promise<void> {
    let output = ''
    const hear = (piece: string): void => void (output = (output + piece).slice(-maxOutput))
    // Without end: E2B's agent would end the process by it.
    const limits = { timeoutMs: 0, requestTimeoutMs }
    const worker = await commands.run(this.#script, {
      background: true,
      envs,
      ...limits,
      onStdout: hear,
      onStderr: hear,
    })
    // Looks on for a while. The process stays when the one who started it leaves.
    const enough = setTimeout(() => void worker.disconnect(), watchMs).unref()
    worker
      .wait()
      .then(
        ({ exitCode }) => exitCode,
        (error: unknown) => (error instanceof this.#options.e2b.CommandExitError ? error.exitCode : undefined),
      )
      .then((exitCode) => {
        clearTimeout(enough)
        // Without a code: it was left. Whether the worker lives is seen by its polls.
        if (exitCode === undefined) return
        const details = { sandboxId, exitCode, output }
        this.#options.log.warn(details, 'the worker in a sandbox ended at once; is it in the template?')
      })
  }
}
