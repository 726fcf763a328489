import type { TestContext } from 'node:test'
import type { RunEnvelope } from '#contracts/run-envelope'
import { createEventEncoder, type RuntimeEvent } from '#contracts/run-event'
import type { StateBundle } from '#contracts/runtime'
import type { ToolResult } from '#contracts/tools'
import { runtimeSessionIdHeader, workerProtocolHeader } from '#contracts/wire/sidecar'
import {
  type PollAnswer,
  stateRevHeader,
  type WorkerCommand,
  workerPaths,
  workerProtocol,
} from '#contracts/wire/worker'

/** How a scripted worker handles the commands that it gets. */
export interface WorkerScript {
  /** Executes a run. A text is sent unchanged as a line. Absent: each run answers `ok`. */
  readonly run?: (envelope: RunEnvelope, signal: AbortSignal) => AsyncIterable<RuntimeEvent | string>
  readonly tool?: (name: string, input: Readonly<Record<string, unknown>>, signal: AbortSignal) => Promise<ToolResult>
  readonly state?: () => StateBundle | undefined
}

/** A minimal worker's end of the polling protocol, for tests of the other end. */
export interface ScriptedWorker {
  readonly sessionId: string
  /** The newest token from the runner. */
  readonly token: string
  /** All commands so far, each once. */
  readonly commands: readonly WorkerCommand[]
  /** The rev of the state that it last sent. */
  readonly stateRev: number
  /** Resolves when the worker was told to shut down, was refused, or was stopped; after a refusal to the status. */
  readonly left: Promise<number | undefined>
  /** Calls a path of the runner with its token. */
  call(path: string, init?: RequestInit): Promise<Response>
  /** Disappears: every connection is cut. */
  stop(): void
}

export interface WorkerIdentity {
  readonly url: string
  readonly sessionId: string
  readonly token: string
}

/** Starts polling at once, and stops after the test. */
export function startScriptedWorker(
  t: Pick<TestContext, 'after'>,
  identity: WorkerIdentity,
  script: WorkerScript = {},
): ScriptedWorker {
  const worker = new PollingWorker(identity, script)
  t.after(() => worker.stop())
  return worker
}

class PollingWorker implements ScriptedWorker {
  sessionId: string
  token: string
  stateRev = 0
  readonly commands: WorkerCommand[] = []
  readonly left: Promise<number | undefined>
  readonly #url: string
  readonly #script: WorkerScript
  readonly #vanishing = new AbortController()
  readonly #runs = new Map<string, AbortController>()
  readonly #calls = new Map<string, AbortController>()

  constructor({ url, sessionId, token }: WorkerIdentity, script: WorkerScript) {
    this.#url = url
    this.sessionId = sessionId
    this.token = token
    this.#script = script
    this.left = this.#poll().catch(() => undefined)
  }

  call(path: string, init: RequestInit = {}): Promise<Response> {
    return fetch(this.#url + path, {
      ...init,
      signal: this.#vanishing.signal,
      headers: { ...(init.headers as Record<string, string>), authorization: `Bearer ${this.token}` },
    })
  }

  stop(): void {
    this.#vanishing.abort()
  }

  get #paths() {
    return workerPaths(this.sessionId)
  }

  async #poll(): Promise<number | undefined> {
    let after = 0
    for (;;) {
      const query = new URLSearchParams({ after: String(after), ...(this.#script.tool ? { tools: '1' } : {}) })
      const headers = { [workerProtocolHeader]: workerProtocol }
      const reply = await this.call(`${this.#paths.poll}?${query}`, { headers })
      if (reply.status === 204) continue
      if (!reply.ok) return reply.status
      const answer = (await reply.json()) as PollAnswer
      this.token = answer.token ?? this.token
      for (const command of answer.commands) {
        if (command.id <= after) continue
        after = command.id
        this.commands.push(command)
        if (command.kind === 'shutdown') return undefined
        this.#obey(command)
      }
    }
  }

  #obey(command: WorkerCommand): void {
    // Polling continues while the command is carried out. A cut connection is the test's doing.
    const start = (work: Promise<void>): void => void work.catch(() => {})
    if (command.kind === 'run') start(this.#run(command.envelope))
    if (command.kind === 'cancel') this.#runs.get(command.runId)?.abort(new Error('cancelled'))
    if (command.kind === 'tool') start(this.#callTool(command))
    if (command.kind === 'tool_cancel') this.#calls.get(command.callId)?.abort(new Error('cancelled'))
    if (command.kind === 'export_state') start(this.#sendState())
    if (command.kind === 'bind') {
      this.sessionId = command.sessionId
      this.token = command.token
    }
  }

  /** Uploads the events of a run during the run. */
  async #run(envelope: RunEnvelope): Promise<void> {
    const abort = new AbortController()
    const { runId } = envelope
    this.#runs.set(runId, abort)
    const encoder = createEventEncoder(runId, envelope.sessionId, envelope.firstSeq)
    const source = (this.#script.run ?? saysOk)(envelope, abort.signal)[Symbol.asyncIterator]()
    const body = new ReadableStream<Uint8Array>({
      async pull(controller) {
        const { done, value } = await source.next()
        if (done) controller.close()
        else controller.enqueue(Buffer.from(typeof value === 'string' ? value : encoder.line(value)))
      },
    })
    const query = new URLSearchParams({ runId })
    const init = { method: 'POST', body, duplex: 'half' } as RequestInit
    const reply = await this.call(`${this.#paths.events}?${query}`, init)
    if (!reply.ok) abort.abort(new Error(`the upload was answered ${reply.status}`))
    this.#runs.delete(runId)
  }

  async #callTool({ callId, name, input }: Extract<WorkerCommand, { kind: 'tool' }>): Promise<void> {
    const abort = new AbortController()
    this.#calls.set(callId, abort)
    const result = (await this.#script.tool?.(name, input, abort.signal)) ?? { ok: false, content: 'no such tool' }
    this.#calls.delete(callId)
    await this.call(this.#paths.tool(callId), {
      method: 'PUT',
      body: JSON.stringify(result),
      headers: { 'content-type': 'application/json' },
    })
  }

  async #sendState(): Promise<void> {
    const bundle = this.#script.state?.()
    if (!bundle) return void (await this.call(this.#paths.state, { method: 'DELETE' }))
    const headers = {
      'content-type': bundle.contentType,
      [stateRevHeader]: String(++this.stateRev),
      ...(bundle.runtimeSessionId === undefined ? {} : { [runtimeSessionIdHeader]: bundle.runtimeSessionId }),
    }
    await this.call(this.#paths.state, { method: 'PUT', body: Buffer.from(bundle.bytes), headers })
  }
}

async function* saysOk(): AsyncGenerator<RuntimeEvent> {
  yield { type: 'result', text: 'ok', finishReason: 'stop' }
}
