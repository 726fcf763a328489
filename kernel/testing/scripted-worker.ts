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

/** What a scripted worker does with the commands it gets. */
export interface WorkerScript {
  /** Its runs; text stands for a line as it is. Unless given, each answers `ok`. */
  readonly run?: (envelope: RunEnvelope, signal: AbortSignal) => AsyncIterable<RuntimeEvent | string>
  readonly tool?: (name: string, input: Readonly<Record<string, unknown>>, signal: AbortSignal) => Promise<ToolResult>
  readonly state?: () => StateBundle | undefined
}

/** The worker's end of the polling protocol, as small as it can be: for tests of what is on the other end. */
export interface ScriptedWorker {
  readonly sessionId: string
  /** The one it has now: it may have been given a newer one. */
  readonly token: string
  /** All commands so far, each once. */
  readonly commands: readonly WorkerCommand[]
  /** The rev of the state that it sent last. */
  readonly stateRev: number
  /** Resolves when it was told to shut down, is refused, or was stopped: with the status of the refusal. */
  readonly left: Promise<number | undefined>
  /** Calls a path of the runner with its token. */
  call(path: string, init?: RequestInit): Promise<Response>
  /** Vanishes: every connection is cut. */
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
  { url, ...identity }: WorkerIdentity,
  script: WorkerScript = {},
): ScriptedWorker {
  let { sessionId, token } = identity
  let after = 0
  let rev = 0
  const commands: WorkerCommand[] = []
  const vanishing = new AbortController()
  const runs = new Map<string, AbortController>()
  const calls = new Map<string, AbortController>()
  const paths = () => workerPaths(sessionId)
  const call = (path: string, init: RequestInit = {}): Promise<Response> =>
    fetch(url + path, {
      ...init,
      signal: vanishing.signal,
      headers: { ...(init.headers as Record<string, string>), authorization: `Bearer ${token}` },
    })

  const upload = async (envelope: RunEnvelope): Promise<void> => {
    const abort = new AbortController()
    const { runId } = envelope
    runs.set(runId, abort)
    const encoder = createEventEncoder(runId, envelope.sessionId, envelope.firstSeq)
    const source = (script.run ?? saysOk)(envelope, abort.signal)[Symbol.asyncIterator]()
    const body = new ReadableStream<Uint8Array>({
      async pull(controller) {
        const { done, value } = await source.next()
        if (done) controller.close()
        else controller.enqueue(Buffer.from(typeof value === 'string' ? value : encoder.line(value)))
      },
    })
    const query = new URLSearchParams({ runId })
    const reply = await call(`${paths().events}?${query}`, { method: 'POST', body, duplex: 'half' } as RequestInit)
    if (!reply.ok) abort.abort(new Error(`the upload was answered ${reply.status}`))
    runs.delete(runId)
  }
  const answerTool = async ({ callId, name, input }: Extract<WorkerCommand, { kind: 'tool' }>): Promise<void> => {
    const abort = new AbortController()
    calls.set(callId, abort)
    const result = (await script.tool?.(name, input, abort.signal)) ?? { ok: false, content: 'no such tool' }
    calls.delete(callId)
    await call(paths().tool(callId), {
      method: 'PUT',
      body: JSON.stringify(result),
      headers: { 'content-type': 'application/json' },
    })
  }
  const sendState = async (): Promise<void> => {
    const bundle = script.state?.()
    if (!bundle) return void (await call(paths().state, { method: 'DELETE' }))
    const headers = {
      'content-type': bundle.contentType,
      [stateRevHeader]: String(++rev),
      ...(bundle.runtimeSessionId === undefined ? {} : { [runtimeSessionIdHeader]: bundle.runtimeSessionId }),
    }
    await call(paths().state, { method: 'PUT', body: Buffer.from(bundle.bytes), headers })
  }
  /** True when it is to go on. */
  const obey = (command: WorkerCommand): boolean => {
    // What it does takes as long as it takes; the poll goes on. A connection that is cut is the test's doing.
    const start = (work: Promise<void>): void => void work.catch(() => {})
    if (command.kind === 'run') start(upload(command.envelope))
    if (command.kind === 'cancel') runs.get(command.runId)?.abort(new Error('cancelled'))
    if (command.kind === 'tool') start(answerTool(command))
    if (command.kind === 'tool_cancel') calls.get(command.callId)?.abort(new Error('cancelled'))
    if (command.kind === 'export_state') start(sendState())
    if (command.kind === 'bind') ({ sessionId, token } = command)
    return command.kind !== 'shutdown'
  }
  const poll = async (): Promise<number | undefined> => {
    for (;;) {
      const query = new URLSearchParams({ after: String(after), ...(script.tool ? { tools: '1' } : {}) })
      const reply = await call(`${paths().poll}?${query}`, { headers: { [workerProtocolHeader]: workerProtocol } })
      if (reply.status === 204) continue
      if (!reply.ok) return reply.status
      const answer = (await reply.json()) as PollAnswer
      token = answer.token ?? token
      for (const command of answer.commands) {
        if (command.id <= after) continue
        after = command.id
        commands.push(command)
        if (!obey(command)) return undefined
      }
    }
  }
  const stop = (): void => vanishing.abort()
  t.after(stop)
  const left = poll().catch(() => undefined)
  return {
    get sessionId() {
      return sessionId
    },
    get token() {
      return token
    },
    get stateRev() {
      return rev
    },
    commands,
    left,
    call,
    stop,
  }
}

async function* saysOk(): AsyncGenerator<RuntimeEvent> {
  yield { type: 'result', text: 'ok', finishReason: 'stop' }
}
