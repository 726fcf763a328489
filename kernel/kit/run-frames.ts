import { sseFrame } from '../http/streams.ts'
import { type LogChunk, peekType } from '../contracts/run-event.ts'
import { linesOf } from './lines.ts'

/**
 * The events of a chunk as SSE frames, each under its own number behind `prefix`; empty when there is nothing to show. The
 * vendor's conversation handle is for the raw log only. Specification 2.8.
 */
export function runFrames(chunk: LogChunk, prefix = ''): string {
  let frames = ''
  let seq = chunk.firstSeq
  for (const line of linesOf(chunk.lines)) {
    const type = peekType(line)
    if (type !== undefined && type !== 'session_init')
      frames += sseFrame(type, line.toString('utf8'), `${prefix}${seq}`)
    seq++
  }
  return frames
}
