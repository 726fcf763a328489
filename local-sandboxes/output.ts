import type { Readable } from 'node:stream'

/** What is kept for the log: enough for the stack of an error. */
const keptBytes = 4 * 1024
/** A worker that prints more has to wait: reading must not keep the runner busy. Its own log is far below. */
const bytesPerSecond = 256 * 1024

/** Reads what a process prints and keeps the end of it. */
export function tailOf(streams: readonly (Readable | null)[]): () => string {
  let tail = Buffer.alloc(0)
  for (const stream of streams) {
    let read = 0
    stream?.on('data', (chunk: Buffer) => {
      tail = Buffer.concat([tail, chunk]).subarray(-keptBytes)
      read += chunk.length
      if (read < bytesPerSecond) return
      read = 0
      stream.pause()
      setTimeout(() => stream.resume(), 1_000).unref()
    })
    // The other end may vanish in any way.
    stream?.on('error', () => {})
  }
  return () => tail.toString('utf8').trim()
}
