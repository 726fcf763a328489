import type { FastifyBaseLogger } from 'fastify'
import { setTimeout as sleep } from 'node:timers/promises'
import { workerVariables } from '#contracts/wire/worker'
import { retry } from '#kit'
import { AgentError, type ProcessEvent, type SandboxAgents } from './agent.ts'
import type { StartedSandbox } from './api.ts'

/** Starts the worker's script and marks it among the sandbox's processes. */
const mark = ': agent-orc-worker; '
/** Retries, because traffic may not reach a new sandbox yet. */
const waits = { firstMs: 250, longestMs: 250, withinMs: 30_000 }
/** Milliseconds that a killed process may take to disappear. */
const endMs = 5_000
const lookMs = 50
/** How many processes are killed at once. There is one, unless the sandbox says what is not so. */
const killsAtOnce = 16
/** Milliseconds. A worker that ends earlier never worked; most likely the template contains no worker. */
const watchMs = 10_000
const maxOutput = 2_000

interface StartOptions {
  /** True when the sandbox was just created, so that no worker can run there. */
  readonly fresh?: boolean
  readonly signal?: AbortSignal
}

interface WorkerProcessOptions {
  readonly agents: SandboxAgents
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
    return (await this.#pids(sandbox, signal)).length > 0
  }

  /** Starts the worker of a sandbox with this environment, after ending a worker that may still run there. */
  async start(
    sandbox: StartedSandbox,
    envs: Record<string, string>,
    { fresh = false, signal }: StartOptions = {},
  ): Promise<void> {
    let clean = fresh
    const attempt = async (): Promise<void> => {
      if (!clean) await this.#endFormer(sandbox)
      // Clean up before another attempt too, because this attempt may have started the worker.
      clean = false
      await this.#startOnce(sandbox, envs)
    }
    const mayPass = (error: unknown): boolean => !(error instanceof AgentError && error.isFinal)
    await retry(attempt, { ...waits, signal, mayPass })
  }

  async #pids(sandbox: StartedSandbox, signal?: AbortSignal): Promise<number[]> {
    const all = await this.#options.agents.list(sandbox, signal)
    return all.filter(({ args }) => args.at(-1)?.startsWith(mark)).map(({ pid }) => pid)
  }

  async #endFormer(sandbox: StartedSandbox): Promise<void> {
    const { agents } = this.#options
    const end = performance.now() + endMs
    for (;;) {
      const pids = await this.#pids(sandbox)
      if (pids.length === 0) return
      if (performance.now() > end) throw new Error('the former worker of the sandbox did not end')
      // A process may end between being found and being killed. That is no failure, because the list is read again.
      await Promise.allSettled(pids.slice(0, killsAtOnce).map((pid) => agents.kill(sandbox, pid)))
      await sleep(lookMs)
    }
  }

  async #startOnce(sandbox: StartedSandbox, envs: Record<string, string>): Promise<void> {
    const process = { cmd: '/bin/bash', args: ['-l', '-c', this.#script], envs }
    const enough = new AbortController()
    const events = await this.#options.agents.start(sandbox, process, enough.signal)
    // Watch for a while, then disconnect. The process continues without its starter.
    const timer = setTimeout(() => enough.abort(), watchMs).unref()
    void this.#watch(sandbox.sandboxID, events).finally(() => clearTimeout(timer))
  }

  async #watch(sandboxId: string, events: AsyncIterable<ProcessEvent>): Promise<void> {
    let output = ''
    let exitCode: number | undefined
    try {
      for await (const { data, end } of events) {
        output = (output + textOf(data?.stdout) + textOf(data?.stderr)).slice(-maxOutput)
        // As JSON has it, a zero is left out.
        if (end) exitCode = Number(end.exitCode ?? 0)
      }
    } catch {
      // Watching ended. Whether the worker lives shows in its polls.
    }
    if (exitCode === undefined) return
    const details = { sandboxId, exitCode, output }
    this.#options.log.warn(details, 'the worker in a sandbox ended at once; is it in the template?')
  }
}

const textOf = (base64: unknown): string => (typeof base64 === 'string' ? Buffer.from(base64, 'base64').toString() : '')
