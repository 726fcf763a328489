import { after, endsLog, lastSeqOf } from '#contracts/log-chunk'
import type { LogChunk } from '#contracts/runs'

/**
 * Events for a reader who must learn the ending. A killed conductor may have shown events that it had not stored, so the
 * ending of its run can have a number that the reader is already past: it is then told all the same, under that number.
 */
export async function* withEnding(
  events: AsyncIterable<LogChunk>,
  record: () => AsyncIterable<LogChunk>,
): AsyncGenerator<LogChunk> {
  for await (const chunk of events) {
    yield chunk
    if (endsLog(chunk)) return
  }
  let last: LogChunk | undefined
  for await (const chunk of record()) last = chunk
  // A run that goes on is no ending: its reader's connection ended, e.g. because this server stops.
  const ending = last && endsLog(last) ? after(last, lastSeqOf(last) - 1) : undefined
  if (ending) yield ending
}
