import type { Readable } from 'node:stream'
import { appError } from '#kernel'

/** The signed plane's own limit, whatever a route's `bodyLimit` says: unverified bytes are held in memory. */
const maxBytes = 1024 * 1024

const bodyTooLarge = appError('body_too_large', 413, 'A signed request body may have at most 1 MiB.')
const bodyCut = appError('invalid_request', 400, 'The request body ended early.')

/** The whole body. On a failure the stream stays open, since its socket must still carry the answer. */
export function readBody(payload: Readable): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let size = 0
    const finish = (settle: () => void): void => {
      payload.off('data', onData).off('end', onEnd).off('error', onCut).off('close', onCut)
      settle()
    }
    const onData = (chunk: Buffer): void => {
      size += chunk.length
      chunks.push(chunk)
      if (size <= maxBytes) return
      payload.pause()
      // The rest is not read, so the connection cannot be used again.
      finish(() => reject(bodyTooLarge({ headers: { connection: 'close' } })))
    }
    const onEnd = (): void => finish(() => resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks, size)))
    const onCut = (): void => finish(() => reject(bodyCut()))
    payload.on('data', onData).on('end', onEnd).on('error', onCut).on('close', onCut)
  })
}
