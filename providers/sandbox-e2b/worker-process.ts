import type * as E2b from 'e2b'
import type { FastifyBaseLogger } from 'fastify'
import { setTimeout as sleep } from 'node:timers/promises'
import { workerVariables } from '#contracts/wire/worker'
import { retry } from '#kit'
import type { StartedSandbox } from './api.ts'

/** Starts the worker's script and marks it among the sandbox's processes, because the package does not tag them. */
const mark = ': agent-orc-worker; '
const requestTimeoutMs = 10_000
/** Retries, because traffic may not reach a new sandbox yet. */
const waits = { firstMs: 250, longestMs: 250, withinMs: 30_000 }
/** Milliseconds that a killed process may take to disappear. */
const endMs = 5_000
const lookMs = 50
/** Milliseconds. A worker that ends earlier never worked; most likely the template contains no worker. */
const watchMs = 10_000
const maxOutput = 2_000
/** Characters of output after which watching ends early: the package keeps all that it hears. */
const mostHeard = 1_048_576

interface StartOptions {
  /** True when the sandbox was just created, so that no worker can run there. */
  readonly fresh?: boolean
  readonly signal?: AbortSignal
}

interface WorkerProcessOptions {
  readonly e2b: Pick<typeof E2b, 'Sandbox' | 'CommandExitError' | 'AuthenticationError' | 'InvalidArgumentError'>
  /** The connection settings of E2B. */
  readonly connection: E2b.ConnectionOpts
  /** A command of the shell. */
  readonly command: string
  readonly log: FastifyBaseLogger
}

/**
 * Starts workers through E2B's agent inside the sandbox, with an environment that E2B does not keep. A template's own start command does not serve:
 * it runs when the template is built, so it never sees the environment of a later sandbox.
 */
export class WorkerProcesses {
  readonly #options: WorkerProcessOptions
  readonly #script: string

  constructor(options: WorkerProcessOptions) {
    this.#options = options
    this.#script = `${mark}mkdir -p "$${workerVariables.workspace}" && ${options.command}`
  }

  /** Whether the worker of a sandbox is running. */
  async isRunning(sandbox: StartedSandbox, signal?: AbortSignal): Promise<boolean> {
    return (await this.#pids(this.#commandsOf(sandbox), signal)).length > 0
  }

  /** Starts the worker of a sandbox with this environment, after ending a worker that may still run there. */
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
      // Clean up before another attempt too, because this attempt may have started the worker.
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
      // A process may end between being found and being killed. That is no failure, because the list is read again.
      await Promise.allSettled(pids.map((pid) => commands.kill(pid, { requestTimeoutMs })))
      await sleep(lookMs)
    }
  }

  async #startOnce(sandboxId: string, commands: E2b.Commands, envs: Record<string, string>): Promise<void> {
    let output = ''
    let heard = 0
    let stop = (): void => {}
    const hear = (piece: string): void => {
      output = (output + piece).slice(-maxOutput)
      heard += piece.length
      if (heard > mostHeard) stop()
    }
    // No timeouts: E2B's agent would end the process when one expires.
    const limits = { timeoutMs: 0, requestTimeoutMs }
    const worker = await commands.run(this.#script, {
      background: true,
      envs,
      ...limits,
      onStdout: hear,
      onStderr: hear,
    })
    stop = () => void worker.disconnect()
    // Watch for a while, then disconnect. The process continues without its starter.
    const enough = setTimeout(stop, watchMs).unref()
    worker
      .wait()
      .then(
        ({ exitCode }) => exitCode,
        (error: unknown) => (error instanceof this.#options.e2b.CommandExitError ? error.exitCode : undefined),
      )
      .then((exitCode) => {
        clearTimeout(enough)
        // No exit code means that watching ended. Whether the worker lives shows in its polls.
        if (exitCode === undefined) return
        const details = { sandboxId, exitCode, output }
        this.#options.log.warn(details, 'the worker in a sandbox ended at once; is it in the template?')
      })
  }
}
