import type { AppError } from '#kernel'
import type { McpServer } from '#contracts/mcp-servers'
import type { RunEnvelope } from '#contracts/run-envelope'
import { envelopeForWorker } from './envelope.ts'
import { sessionBusy, unknownRun, workerLost, workerUnreachable } from './errors.ts'
import type { Mailbox } from './mailbox.ts'
import type { Presence } from './presence.ts'
import type { IssuedToken } from './token.ts'
import { createTurn, type Turn } from './turn.ts'
import type { Upload } from './upload.ts'

/** The runs of one worker, one at a time. */
export interface Runs {
  run(envelope: RunEnvelope, signal: AbortSignal, runnerUrl: string): AsyncGenerator<Buffer>
  /** AppError 404 `unknown_run`. */
  take(runId: string, upload: Upload): void
  readonly busy: boolean
  /** Of the run under way, as its envelope had it. */
  mcpServer(name: string): McpServer | undefined
  /** No run from now on. The worker's upload, if there is one, is answered so. */
  close(answer: AppError): void
}

interface UnderWay {
  readonly turn: Turn
  readonly mcpServers: readonly McpServer[]
  /** True when the worker may have begun. */
  withdraw(): boolean
}

export function createRuns(mailbox: Mailbox, presence: Presence, token: IssuedToken): Runs {
  let current: UnderWay | undefined
  let closed = false
  return {
    async *run(envelope, signal, runnerUrl) {
      // Of a worker that slept for a day the last one may be over.
      const credential = await token.fresh()
      if (closed) throw workerUnreachable({ retryable: true })
      if (current) throw sessionBusy()
      signal.throwIfAborted()
      const { runId, mcpServers = [] } = envelope
      const turn = createTurn(runId, envelope.resume === true)
      const command = mailbox.push({ kind: 'run', envelope: envelopeForWorker(envelope, runnerUrl, credential) })
      const withdraw = (): boolean => mailbox.withdraw(command)
      current = { turn, mcpServers, withdraw }
      const abort = (): void => turn.end(signal.reason as Error)
      signal.addEventListener('abort', abort)
      const stopWatching = presence.watch(() => turn.end(workerLost({ retryable: true })))
      let whole = false
      try {
        yield* turn.events()
        whole = true
      } finally {
        stopWatching()
        signal.removeEventListener('abort', abort)
        current = undefined
        if (withdraw() && !whole) mailbox.push({ kind: 'cancel', runId })
      }
    },
    take(runId, upload) {
      if (current?.turn.runId !== runId) throw unknownRun()
      current.turn.take(upload)
    },
    get busy() {
      return current !== undefined
    },
    mcpServer: (name) => current?.mcpServers.find((server) => server.name === name),
    close(answer) {
      closed = true
      if (!current) return
      const error = current.withdraw() ? workerLost : workerUnreachable
      current.turn.end(error({ retryable: true }), answer)
    },
  }
}
