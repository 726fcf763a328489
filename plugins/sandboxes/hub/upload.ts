import type { IncomingMessage } from 'node:http'
import { type AppError, OversizedLineError, wholeLines } from '#kernel'
import { sandboxErrors } from '../errors.ts'

export interface UploadLimits {
  readonly maxBytes: number
  readonly maxMs: number
}

/** The incoming events of one run. Unread events wait in the socket, not in memory. */
export interface Upload {
  /** Chunks of whole lines. One reader. */
  lines(): AsyncIterable<Buffer>
  /** Ends the upload: the worker gets `answer`, the reader gets `thrown`. */
  end(answer: AppError, thrown?: Error): void
  /** Resolves when everything was read. Rejects with the error for the worker. */
  readonly done: Promise<void>
}

/** How long a worker may continue to send after its upload was refused: it has to read the answer first. */
const lingerMs = 5_000

/** Receives an upload. `onBytes` is called for each chunk. */
export function receive(body: IncomingMessage, { maxBytes, maxMs }: UploadLimits, onBytes: () => void): Upload {
  const over = Promise.withResolvers<void>()
  // The handler of the route awaits this promise later. Until then a rejection must not count as unhandled.
  over.promise.catch(() => {})
  let state: 'open' | 'ended' | 'failed' = 'open'
  let failure: Error | undefined
  let size = 0
  let wake: (() => void) | undefined
  const settle = (next: 'ended' | 'failed'): void => {
    state = next
    clearTimeout(late)
    body.off('readable', news).off('end', finish).off('error', cut).off('close', cut)
    wake?.()
  }
  const end = (answer: AppError, thrown: Error = answer): void => {
    if (state !== 'open') return
    failure = thrown
    settle('failed')
    over.reject(answer)
    discard(body)
  }
  const finish = (): void => {
    settle('ended')
    over.resolve()
  }
  const news = (): void => wake?.()
  const cut = (): void => end(sandboxErrors.sidecarLost())
  const late = setTimeout(() => end(sandboxErrors.eventUploadTimeout()), maxMs)
  body.on('readable', news).on('end', finish).on('error', cut).on('close', cut)
  if (Number(body.headers['content-length'] ?? 0) > maxBytes) end(sandboxErrors.eventUploadTooLarge())
  else if (body.destroyed) cut()

  async function* chunks(): AsyncGenerator<Buffer> {
    for (;;) {
      if (failure) throw failure
      if (state === 'ended') return
      const chunk = body.read() as Buffer | null
      if (chunk === null) {
        await new Promise<void>((resolve) => {
          wake = resolve
        })
        continue
      }
      onBytes()
      size += chunk.length
      if (size > maxBytes) end(sandboxErrors.eventUploadTooLarge())
      else yield chunk
    }
  }
  return {
    async *lines() {
      try {
        yield* wholeLines(chunks())
      } catch (error) {
        if (error instanceof OversizedLineError) end(sandboxErrors.invalidEvents(), error)
        throw error
      }
    },
    end,
    done: over.promise,
  }
}

/** Drops the rest of the body for a while. Closing the connection at once would keep the worker from reading the answer. */
function discard(body: IncomingMessage): void {
  if (body.destroyed) return
  const late = setTimeout(() => body.destroy(), lingerMs)
  body
    .once('close', () => clearTimeout(late))
    .on('error', () => {})
    .resume()
}
