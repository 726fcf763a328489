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
  /** The way out of the sandbox that the run under way has; undefined when it has none. */
  readonly egress: EgressAccess | undefined
  /** Lets the runs under way end for so long, then interrupts them; resolves when all are uploaded, and their states saved. */
  drain(ms: number): Promise<void>
}

export interface RunsOptions {
  readonly link: SidecarLink
  readonly runner: RunnerClient
  readonly files: FilesCopy
  readonly log: FastifyBaseLogger
  readonly life: Lifetime
}

/** How long the runner may take to confirm a run that it has the last byte of. */
const confirmMs = 60_000

export function createRuns({ link, runner, files, log, life }: RunsOptions): Runs {
  const active = new Map<
    string,
    { readonly stop: AbortController; readonly over: Promise<void>; readonly egress: EgressAccess | undefined }
  >()

  const execute = async (envelope: RunEnvelope, conversation: Conversation, stop: AbortController): Promise<void> => {
    await conversation.prepare(envelope.profile.runtime)
    // A runtime with tools of its own touches files whenever it likes: it finds what others wrote before, and what it wrote is kept
    // when its run is over.
    const settle = envelope.vfs ? files : undefined
    await settle?.settle(stop.signal)
    const run = begin(link, envelope, stop.signal)
    try {
      await deliver(run, envelope.runId, async () => void (await settle?.settleIfTouched(life.over)))
    } catch (err) {
      if (!life.over.aborted) log.warn({ err, runId: envelope.runId }, 'a run could not be uploaded')
      // The runner does not take the rest of the events.
      stop.abort()
    } finally {
      await run.leave()
    }
    if (!run.refused) await conversation.save()
  }

  /** Lines that were sent are gone, so only an upload that has sent nothing is tried again. */
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
          // A dead connection may pull once more; the line would be lost to the next connection.
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
      // The run before may still be saving its conversation; its key opens nothing any more.
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
  /** The local link did not take it; `first` says why, and is all there is. */
  readonly refused: boolean
  leave(): Promise<void>
}

/** Begins a run at once: the connection that takes its lines is made meanwhile. It holds no more than its link does. */
function begin(link: SidecarLink, envelope: RunEnvelope, signal: AbortSignal): BegunRun {
  const source = link.run(envelope, signal)[Symbol.asyncIterator]()
  let refused = false
  const first = source.next().catch((error: unknown): IteratorResult<Buffer> => {
    refused = true
    return { done: false, value: refusalLine(envelope, error) }
  })
  return {
    first,
    // A source that has thrown is done.
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
