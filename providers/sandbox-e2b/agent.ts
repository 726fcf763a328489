import type { ConnectionConfig } from 'e2b'
import { Agent } from 'undici'
import { exchange, Gathered, parseJson, readBody, type Reply } from '#kit'
import type { StartedSandbox } from './api.ts'

/** The port of envd, E2B's agent inside each sandbox. */
const envdPort = 49_983
/** Milliseconds for a whole answer, or until a process has started. */
const requestMs = 10_000
/** Whatever runs in a sandbox may have taken the place of its agent, so larger answers and messages are not read. */
const maxBytes = 1024 * 1024

/** envd refused the request. */
export class AgentError extends Error {
  /** The same request will be refused again. */
  readonly isFinal: boolean
  constructor(status: number, error: unknown) {
    const { code, message } = (error ?? {}) as { readonly code?: unknown; readonly message?: unknown }
    const said = [code, message].filter((part) => typeof part === 'string').join(': ')
    super(`the agent of the sandbox answered ${status} ${said.slice(0, 500)}`)
    this.isFinal = status === 401 || code === 'unauthenticated' || code === 'invalid_argument'
  }
}

export interface AgentProcess {
  readonly pid: number
  readonly args: readonly string[]
}

/** One event of a process, in the JSON of envd's protocol. Whoever runs in the sandbox may send anything. */
export interface ProcessEvent {
  readonly start?: unknown
  readonly data?: { readonly stdout?: unknown; readonly stderr?: unknown } | null
  readonly end?: { readonly exitCode?: unknown } | null
}

/**
 * The three procedures of envd that are used here, as the Connect protocol has them (spec/envd/process/process.proto). The package of E2B has a client
 * of its own, which reads every answer to its end, however large it is.
 */
export class SandboxAgents {
  readonly #config: ConnectionConfig
  readonly #dispatcher = new Agent({ connect: { timeout: requestMs }, allowH2: false })

  constructor(config: ConnectionConfig) {
    this.#config = config
  }

  close(): Promise<void> {
    return this.#dispatcher.destroy()
  }

  /** What envd has started in the sandbox. */
  async list(sandbox: StartedSandbox, signal?: AbortSignal): Promise<AgentProcess[]> {
    const { processes } = (await this.#ask(sandbox, 'List', {}, signal)) as { readonly processes?: unknown }
    if (!Array.isArray(processes)) return []
    return processes.flatMap(
      (one: { readonly pid?: unknown; readonly config?: { readonly args?: unknown } } | null) => {
        const args = one?.config?.args
        return typeof one?.pid === 'number' && Array.isArray(args)
          ? [{ pid: one.pid, args: args.filter((arg) => typeof arg === 'string') }]
          : []
      },
    )
  }

  async kill(sandbox: StartedSandbox, pid: number): Promise<void> {
    await this.#ask(sandbox, 'SendSignal', { process: { pid }, signal: 'SIGNAL_SIGKILL' })
  }

  /** Starts a process, which goes on when nobody hears it any more. Resolves to its further events when it has started. */
  async start(
    sandbox: StartedSandbox,
    process: {
      readonly cmd: string
      readonly args: readonly string[]
      readonly envs: Readonly<Record<string, string>>
    },
    signal: AbortSignal,
  ): Promise<AsyncGenerator<ProcessEvent>> {
    const late = new AbortController()
    const timer = setTimeout(() => late.abort(new Error('the process in a sandbox did not start in time')), requestMs)
    try {
      const message = Buffer.from(JSON.stringify({ process, stdin: false }))
      const head = Buffer.alloc(5)
      head.writeUInt32BE(message.length, 1)
      const body = Buffer.concat([head, message])
      const type = 'application/connect+json'
      const reply = await this.#send(sandbox, 'Start', { type, body, signal: AbortSignal.any([signal, late.signal]) })
      if (reply.status !== 200) throw new AgentError(reply.status, await jsonOf(reply))
      const events = eventsOf(reply.body)
      const { value: first } = await events.next()
      if (first?.start) return events
      await events.return(undefined)
      throw new Error('the process in a sandbox did not start')
    } finally {
      clearTimeout(timer)
    }
  }

  async #ask(sandbox: StartedSandbox, procedure: string, message: object, signal?: AbortSignal): Promise<object> {
    const sent = { type: 'application/json', body: Buffer.from(JSON.stringify(message)), signal, whole: true }
    const reply = await this.#send(sandbox, procedure, sent)
    const answer = await jsonOf(reply)
    if (reply.status !== 200) throw new AgentError(reply.status, answer)
    if (typeof answer !== 'object' || answer === null) throw new Error('the agent of the sandbox answered no message')
    return answer
  }

  #send(
    { sandboxID, envdVersion, envdAccessToken, domain }: StartedSandbox,
    procedure: string,
    sent: {
      readonly type: string
      readonly body: Buffer
      readonly signal: AbortSignal | undefined
      readonly whole?: boolean
    },
  ): Promise<Reply> {
    const where = { sandboxDomain: domain || this.#config.domain, envdPort }
    const { origin, pathname } = new URL(this.#config.getSandboxUrl(sandboxID, where))
    const { type, body, signal, whole = false } = sent
    const request = {
      method: 'POST',
      origin,
      path: `${pathname.replace(/\/+$/, '')}/process.Process/${procedure}`,
      headers: {
        'content-type': type,
        'connect-protocol-version': '1',
        'e2b-sandbox-id': sandboxID,
        'e2b-sandbox-port': String(envdPort),
        ...(envdAccessToken ? { 'x-access-token': envdAccessToken } : {}),
        // Before 0.4 there was no default user.
        ...(/^0\.[0-3]\./.test(envdVersion) ? { authorization: `Basic ${btoa('user:')}` } : {}),
      },
      body,
    } as const
    const lost = (cause: Error): Error =>
      new Error(`the agent of the sandbox does not answer: ${cause.message}`, { cause })
    return exchange(this.#dispatcher, request, { signal, lost, timeoutMs: requestMs, whole })
  }
}

/** Undefined when the answer is larger than is read, or no JSON. */
async function jsonOf({ body }: Reply): Promise<unknown> {
  const bytes = await readBody(body, maxBytes)
  return bytes && parsed(bytes)
}

function parsed(bytes: Buffer): unknown {
  try {
    return parseJson(bytes)
  } catch {
    return undefined
  }
}

/** The messages of a stream: each has a byte of flags and four with its length before it. */
async function* eventsOf(body: AsyncIterable<Buffer>): AsyncGenerator<ProcessEvent> {
  let whole = new Gathered()
  let heard = 0
  for await (const chunk of body) {
    heard += chunk.length
    if (heard > 2 * maxBytes) return
    whole.add(chunk)
    const { bytes } = whole
    let at = 0
    while (bytes.length - at >= 5) {
      const end = at + 5 + bytes.readUInt32BE(at + 1)
      if (end - at > maxBytes) throw new Error('a message of the agent of the sandbox is too large')
      if (end > bytes.length) break
      const message = parsed(bytes.subarray(at + 5, end)) as
        | { event?: ProcessEvent; error?: unknown }
        | null
        | undefined
      // The last message says whether the procedure failed.
      if (message?.error) throw new AgentError(200, message.error)
      if (message?.event) yield message.event
      at = end
    }
    if (at === 0) continue
    whole = new Gathered()
    if (at < bytes.length) whole.add(Buffer.from(bytes.subarray(at)))
  }
}
