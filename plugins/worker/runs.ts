import type { FastifyBaseLogger } from 'fastify'
import { isAppError, linesOf } from '#kernel'
import type { EgressAccess } from '#contracts/egress'
import type { RunEnvelope } from '#contracts/run-envelope'
import { createEventEncoder, peekType } from '#contracts/run-event'
import type { SidecarLink } from '#contracts/sidecar'
import { type Lifetime, persist } from './persist.ts'
import type { Conversation } from './conversation.ts'
import type { RunnerClient } from './runner-client.ts'
import type { FilesCopy } from './vfs/copy.ts'

export interface Runs {
  start(envelope: RunEnvelope, conversation: Conversation): void
  cancel(runId: string): void
  /** How the sandbox reaches hosts during the present run; undefined when the run allows none. */
  readonly egress: EgressAccess | undefined
  /** Lets the present runs go on for `ms`, then interrupts them. Resolves when all runs are uploaded and their states saved. */
  drain(ms: number): Promise<void>
}

export interface RunsOptions {
  readonly link: SidecarLink
  readonly runner: RunnerClient
  readonly files: FilesCopy
  readonly log: FastifyBaseLogger
  readonly life: Lifetime
}

/** How long the runner may take to confirm a run after it has received the last byte. */
const confirmMs = 60_000

export function createRuns({ link, runner, files, log, life }: RunsOptions): Runs {
  const active = new Map<
    string,
    { readonly stop: AbortController; readonly over: Promise<void>; readonly egress: EgressAccess | undefined }
  >()

  const execute = async (envelope: RunEnvelope, conversation: Conversation, stop: AbortController): Promise<void> => {
    await conversation.prepare(envelope.profile.runtime)
    // A runtime with its own tools may touch files at any time. So the files are settled before the run, which brings changes of others, and after
    // it, which saves the runtime's changes.
    const settle = envelope.vfs ? files : undefined
    await settle?.settle(stop.signal)
    const run = begin(link, envelope, stop.signal)
    try {
      await deliver(run, envelope.runId, async () => void (await settle?.settleIfTouched(life.over)))
    } catch (err) {
      if (!life.over.aborted) log.warn({ err, runId: envelope.runId }, 'a run could not be uploaded')
      // The runner does not accept the rest of the events, so the run is stopped.
      stop.abort()
    } finally {
      await run.leave()
    }
    if (!run.refused) await conversation.save()
  }

  /** Lines that were sent cannot be sent again, so an upload is retried only if it has sent nothing. */
  const deliver = (run: BegunRun, runId: string, beforeEnd: () => Promise<void>): Promise<void> => {
    const attempt = async (): Promise<void> => {
      const late = new AbortController()
      let timer: NodeJS.Timeout | undefined
      let sent = false
      let over = false
      const lines = async function* (): AsyncGenerator<Buffer> {
        for (let line = await run.first; !line.done; line = await run.next()) {
          sent = true
          if (endsRun(line.value)) await beforeEnd()
          yield line.value
          // A dead connection may pull one more line. That line would be missing in the next upload.
          if (over) return
        }
        timer = setTimeout(() => late.abort(), confirmMs)
      }
      try {
        await runner.upload(runId, lines(), AbortSignal.any([life.over, late.signal]))
      } catch (error) {
        throw sent ? new Error('the upload broke', { cause: error }) : error
      } finally {
        over = true
        clearTimeout(timer)
      }
    }
    return persist(attempt, life)
  }

  return {
    start(envelope, conversation) {
      const stop = new AbortController()
      const over = execute(envelope, conversation, stop).finally(() => active.delete(envelope.runId))
      active.set(envelope.runId, { stop, over, egress: envelope.egress })
    },
    cancel: (runId) => active.get(runId)?.stop.abort(),
    get egress() {
      // An earlier run may still be saving its conversation, but its egress key is no longer valid. The latest run counts.
      return [...active.values()].at(-1)?.egress
    },
    async drain(ms) {
      const all = [...active.values()]
      const timer = setTimeout(() => all.forEach(({ stop }) => stop.abort('shutdown')), ms)
      await Promise.all(all.map(({ over }) => over))
      clearTimeout(timer)
    },
  }
}

const endsRun = (chunk: Buffer): boolean => {
  const last = [...linesOf(chunk)].at(-1)
  const type = last && peekType(last)
  return type === 'result' || type === 'error'
}

interface BegunRun {
  readonly first: Promise<IteratorResult<Buffer>>
  next(): Promise<IteratorResult<Buffer>>
  /** True when the local link refused the run. `first` is then the refusal and the only line. */
  readonly refused: boolean
  leave(): Promise<void>
}

/** Begins a run at once, while the connection for its lines is opened. It buffers no more than the link does. */
function begin(link: SidecarLink, envelope: RunEnvelope, signal: AbortSignal): BegunRun {
  const source = link.run(envelope, signal)[Symbol.asyncIterator]()
  let refused = false
  const first = source.next().catch((error: unknown): IteratorResult<Buffer> => {
    refused = true
    return { done: false, value: refusalLine(envelope, error) }
  })
  return {
    first,
    // After an error the iterator is done, so this ends the lines.
    next: () => source.next(),
    get refused() {
      return refused
    },
    async leave() {
      await source.return?.()
    },
  }
}

/** A refusal as an event: over HTTP it would be the status and body of the answer. */
function refusalLine({ runId, sessionId, firstSeq }: RunEnvelope, error: unknown): Buffer {
  const known = isAppError(error) ? error : undefined
  const line = createEventEncoder(runId, sessionId, firstSeq).line({
    type: 'error',
    code: known?.code ?? 'runtime_error',
    message: known?.sentence ?? 'The worker could not begin the run.',
    ...(known?.retryable ? { retryable: true } : {}),
  })
  return Buffer.from(line)
}
