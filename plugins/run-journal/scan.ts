import type { FileHandle } from 'node:fs/promises'
import type { JournalFinish, JournalHeader } from '#contracts/run-journal'
import { isEvent, isFinish, readFinish, readHeader } from './lines.ts'

/** What a file holds up to its first line that is torn or out of place. */
export interface Scan {
  readonly header: JournalHeader
  readonly lastSeq: number
  readonly finish: JournalFinish | undefined
  /** Where the events begin and end in the file. */
  readonly eventsFrom: number
  readonly eventsTo: number
  /** Bytes that make sense; what is behind them is the torn tail. */
  readonly size: number
}

const readBytes = 256 * 1024

/** Reads a file line by line. Undefined: not even its header is whole. */
export async function scan(file: FileHandle): Promise<Scan | undefined> {
  let header: JournalHeader | undefined
  let finish: JournalFinish | undefined
  let lastSeq = 0
  let size = 0
  let eventsFrom = 0
  let eventsTo = 0
  for await (const { line, end } of linesOf(file)) {
    if (!header) {
      header = readHeader(line)
      if (!header) return undefined
      eventsFrom = eventsTo = end
    } else if (isEvent(line, header.runId, lastSeq + 1)) {
      lastSeq++
      eventsTo = end
    } else {
      finish = isFinish(line) ? readFinish(line) : undefined
      if (finish) size = end
      break
    }
    size = end
  }
  return header && { header, lastSeq, finish, eventsFrom, eventsTo, size }
}

/** Whether the last line is a whole finish line, from the end of the file alone: most files of a start are finished. */
export async function isFinished(file: FileHandle): Promise<boolean> {
  const { size } = await file.stat()
  const tail = Buffer.alloc(Math.min(size, 8 * 1024))
  const { bytesRead } = await file.read(tail, 0, tail.length, size - tail.length)
  if (bytesRead === 0 || tail[bytesRead - 1] !== 0x0a) return false
  const start = tail.lastIndexOf(0x0a, bytesRead - 2) + 1
  return isFinish(tail.subarray(start, bytesRead - 1)) && readFinish(tail.subarray(start, bytesRead - 1)) !== undefined
}

/** Whole lines without their newline, and where in the file each ends. */
async function* linesOf(file: FileHandle): AsyncGenerator<{ line: Buffer; end: number }> {
  let rest: Buffer = Buffer.alloc(0)
  let at = 0
  for (let position = 0; ;) {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(readBytes), 0, readBytes, position)
    if (bytesRead === 0) return
    position += bytesRead
    const bytes = rest.length > 0 ? Buffer.concat([rest, buffer.subarray(0, bytesRead)]) : buffer.subarray(0, bytesRead)
    let start = 0
    for (let end = bytes.indexOf(0x0a); end >= 0; end = bytes.indexOf(0x0a, start)) {
      at += end + 1 - start
      yield { line: bytes.subarray(start, end), end: at }
      start = end + 1
    }
    rest = bytes.subarray(start)
  }
}
