import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Dispatcher } from 'undici'
import { workerVariables } from '#contracts/wire/worker'
import { askJson, exchange, type JsonAnswer, NoAnswer, readBody } from '#kit'
import { E2bError, type StartedSandbox } from './api.ts'

/** Where E2B's agent listens inside of a sandbox. */
const agentPort = '49983'
/** Names our worker among the processes of its sandbox. */
const tag = 'agent-orc-worker'
const requestMs = 10_000
/** A sandbox that has just begun may not be routed to yet. */
const patienceMs = 30_000
const retryMs = 250
/** How long a killed process may take to be gone. */
const endMs = 5_000
/** A worker that ends this early never worked: most likely the template has none. */
const watchMs = 10_000
const maxOutput = 2_000

interface StartOptions {
  /** The sandbox has just been created: no worker runs there. */
  readonly fresh?: boolean
  readonly signal?: AbortSignal
}

interface WorkerProcessOptions {
  readonly dispatcher: Dispatcher
  /** Run by `/bin/sh -c`. */
  readonly command: string
  readonly domain: string
  /** Stands for every sandbox's own address, where E2B is hosted by oneself. */
  readonly sandboxUrl?: string | undefined
  readonly log: FastifyBaseLogger
}

type Environment = Readonly<Record<string, string>>

interface ProcessEvent {
  readonly event?: {
    readonly start?: { readonly pid?: number }
    readonly data?: { readonly stdout?: string; readonly stderr?: string }
    readonly end?: { readonly exitCode?: number; readonly status?: string }
  }
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
    this.#script = `mkdir -p "$${workerVariables.workspace}" && ${options.command}`
  }

  /** Whether the worker of a sandbox runs. */
  async isRunning(sandbox: StartedSandbox, signal?: AbortSignal): Promise<boolean> {
    const answer = await this.#ask(sandbox, 'List', {}, signal)
    if (answer.status !== 200) throw new E2bError(answer)
    const { processes = [] } = (answer.body ?? {}) as { processes?: readonly { readonly tag?: string }[] }
    return processes.some((process) => process.tag === tag)
  }

  /** Starts the worker of a sandbox with this environment, after ending the one that may run there. */
  async start(sandbox: StartedSandbox, env: Environment, { fresh = false, signal }: StartOptions = {}): Promise<void> {
    const end = performance.now() + patienceMs
    for (let attempt = 0; ; attempt++) {
      signal?.throwIfAborted()
      try {
        // Before another attempt, too: the former one may have started it.
        if (!fresh || attempt > 0) await this.#endFormer(sandbox)
        return await this.#startOnce(sandbox, env)
      } catch (error) {
        if (!mayPass(error) || performance.now() + retryMs > end) throw error
        await sleep(retryMs)
      }
    }
  }

  async #endFormer(sandbox: StartedSandbox): Promise<void> {
    const end = performance.now() + endMs
    while (await this.#kill(sandbox)) {
      if (performance.now() > end) throw new Error('the former worker of the sandbox did not end')
      await sleep(retryMs / 5)
    }
  }

  /** False when nothing runs under the tag. */
  async #kill(sandbox: StartedSandbox): Promise<boolean> {
    const answer = await this.#ask(sandbox, 'SendSignal', { process: { tag }, signal: 'SIGNAL_SIGKILL' })
    if (answer.status === 404) return false
    // It ended between being found and being killed.
    if (answer.status === 200 || (answer.body as { code?: unknown } | undefined)?.code === 'internal') return true
    throw new E2bError(answer)
  }

  async #startOnce(sandbox: StartedSandbox, env: Environment): Promise<void> {
    const leave = new AbortController()
    const late = setTimeout(() => leave.abort(new NoAnswer('the sandbox did not answer', true, undefined)), requestMs)
    try {
      const reply = await this.#askToStart(sandbox, env, leave.signal)
      if (reply.status !== 200) {
        const body = (await readBody(reply.body, maxOutput))?.toString('utf8')
        throw new E2bError({ ...reply, body: undefined }, `the sandbox answered ${reply.status}: ${body ?? ''}`)
      }
      const events = messagesOf(reply.body) as AsyncGenerator<ProcessEvent>
      const first = await events.next()
      if (first.done || !first.value.event?.start) throw new Error('the sandbox did not say that the worker runs')
      void this.#watch(sandbox.sandboxID, events, leave)
    } catch (error) {
      leave.abort()
      throw error
    } finally {
      clearTimeout(late)
    }
  }

  #askToStart(sandbox: StartedSandbox, envs: Environment, signal: AbortSignal) {
    return exchange(
      this.#options.dispatcher,
      {
        method: 'POST',
        origin: this.#addressOf(sandbox),
        path: '/process.Process/Start',
        headers: { ...headersOf(sandbox), 'content-type': 'application/connect+json' },
        // No `connect-timeout-ms`: the agent would end the process by it.
        body: envelope({ process: { cmd: '/bin/sh', args: ['-c', this.#script], envs }, tag, stdin: false }),
      },
      { signal, lost: (cause) => new NoAnswer(`the sandbox cannot be reached: ${cause.message}`, true, cause) },
    )
  }

  /** Looks on for a while. The process stays when the one who started it leaves. */
  async #watch(sandboxId: string, events: AsyncIterable<ProcessEvent>, leave: AbortController): Promise<void> {
    const enough = setTimeout(() => leave.abort(), watchMs).unref()
    let output = ''
    try {
      for await (const { event } of events) {
        const piece = event?.data?.stderr ?? event?.data?.stdout
        if (piece) output = (output + Buffer.from(piece, 'base64').toString('utf8')).slice(-maxOutput)
        if (!event?.end) continue
        const { exitCode = 0 } = event.end
        const details = { sandboxId, exitCode, output }
        this.#options.log.warn(details, 'the worker in a sandbox ended at once; is it in the template?')
      }
    } catch {
      // Whether the worker lives is seen by its polls.
    } finally {
      clearTimeout(enough)
      leave.abort()
    }
  }

  #ask(sandbox: StartedSandbox, procedure: string, body: object, signal?: AbortSignal): Promise<JsonAnswer> {
    return askJson(this.#options.dispatcher, {
      method: 'POST',
      origin: this.#addressOf(sandbox),
      path: `/process.Process/${procedure}`,
      headers: headersOf(sandbox),
      body,
      timeoutMs: requestMs,
      signal,
    })
  }

  #addressOf({ sandboxID, domain: own }: StartedSandbox): string {
    const { sandboxUrl, domain } = this.#options
    return (sandboxUrl ?? `https://${agentPort}-${sandboxID}.${own || domain}`).replace(/\/+$/, '')
  }
}

const headersOf = ({ sandboxID, envdAccessToken }: StartedSandbox): Record<string, string> => ({
  'connect-protocol-version': '1',
  'e2b-sandbox-id': sandboxID,
  'e2b-sandbox-port': agentPort,
  ...(envdAccessToken ? { 'x-access-token': envdAccessToken } : {}),
})

const mayPass = (error: unknown): boolean =>
  error instanceof NoAnswer || (error instanceof E2bError && [429, 500, 502, 503, 504].includes(error.status))

// Messages of the Connect protocol, which E2B's agent inside of a sandbox speaks: https://connectrpc.com/docs/protocol

/** A message is its flags, its length in four bytes, and JSON. */
const headBytes = 5
const lastFlag = 2
/** One piece of a process's output is far less. */
const maxMessageBytes = 4 * 1024 * 1024

function envelope(message: unknown): Buffer {
  const json = Buffer.from(JSON.stringify(message))
  const head = Buffer.alloc(headBytes)
  head.writeUInt32BE(json.length, 1)
  return Buffer.concat([head, json])
}

interface Trailer {
  readonly error?: { readonly code?: string; readonly message?: string }
}

/** The messages of a stream. Throws what its end says, also when there is no end. */
export async function* messagesOf(body: AsyncIterable<Buffer>): AsyncGenerator<unknown> {
  let rest: Buffer = Buffer.alloc(0)
  for await (const chunk of body) {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk])
    while (rest.length >= headBytes) {
      const size = rest.readUInt32BE(1)
      if (size > maxMessageBytes) throw new Error('a message of the sandbox is too long')
      if (rest.length < headBytes + size) break
      const message: unknown = JSON.parse(rest.toString('utf8', headBytes, headBytes + size))
      const last = (rest[0]! & lastFlag) !== 0
      rest = rest.subarray(headBytes + size)
      if (!last) yield message
      else {
        const { error } = message as Trailer
        if (error) throw new Error(`the sandbox answered ${error.code ?? 'an error'}: ${error.message ?? ''}`)
        return
      }
    }
  }
  throw new Error('the stream of the sandbox was cut')
}
