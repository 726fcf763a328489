import { isTerminalType, peekType } from './run-event.ts'
import type { LogChunk } from './runs.ts'

export const lastSeqOf = (chunk: LogChunk): number => chunk.firstSeq + chunk.count - 1

/** The part of a chunk behind `seq`, without copying; undefined when nothing is. */
export function after(chunk: LogChunk, seq: number): LogChunk | undefined {
  const skip = seq + 1 - chunk.firstSeq
  if (skip <= 0) return chunk
  if (skip >= chunk.count) return undefined
  let start = 0
  for (let i = 0; i < skip; i++) start = chunk.lines.indexOf(0x0a, start) + 1
  return { firstSeq: chunk.firstSeq + skip, count: chunk.count - skip, lines: chunk.lines.subarray(start) }
}

/** Consecutive chunks as one. */
export function join(chunks: readonly LogChunk[]): LogChunk | undefined {
  const first = chunks[0]
  if (!first || chunks.length === 1) return first
  return {
    firstSeq: first.firstSeq,
    count: chunks.reduce((sum, chunk) => sum + chunk.count, 0),
    lines: Buffer.concat(chunks.map((chunk) => chunk.lines)),
  }
}

/** The terminal event, without copying, of a chunk that ends its log. */
export function endOf(chunk: LogChunk): LogChunk | undefined {
  const end = chunk.lines.length - 1
  const lines = chunk.lines.subarray(chunk.lines.lastIndexOf(0x0a, end - 1) + 1)
  const isEnd = isTerminalType(peekType(lines.subarray(0, -1)))
  return isEnd ? { firstSeq: lastSeqOf(chunk), count: 1, lines } : undefined
}
/** Whether a chunk ends its log. */
export const endsLog = (chunk: LogChunk): boolean => endOf(chunk) !== undefined
