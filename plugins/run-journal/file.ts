import { type FileHandle, open } from 'node:fs/promises'
import { after, lastSeqOf, type LogChunk } from '#contracts/run-event'
import type { JournalFinish, JournalHeader } from '#contracts/run-journal'
import { finishLine, headerLine } from './lines.ts'
import { scan, type Scan } from './scan.ts'

/** The file of one run under way. Calls are made one after the other. */
export interface JournalFile {
  readonly lastSeq: number
  /** Adds what of a chunk the file does not hold yet. A chunk that leaves a gap is a mistake of the caller. */
  append(chunk: LogChunk): Promise<void>
  /** Ends and closes the file. Durable when it resolves; after a failure it may be called again. */
  finish(end: JournalFinish): Promise<void>
  close(): Promise<void>
}

/** Starts the file of a run. */
export async function createFile(path: string, header: JournalHeader): Promise<JournalFile> {
  const handle = await open(path, 'wx')
  const file = journalFile(handle, 0, 0)
  try {
    await file.write(headerLine(header))
    return file
  } catch (error) {
    await handle.close()
    throw error
  }
}

export interface Reopened {
  readonly found: Scan
  /** The events that the file holds. */
  events(): Promise<Buffer>
  /** Cuts the torn tail off, to go on behind what makes sense. Not for a file with a finish line. */
  resume(): Promise<JournalFile>
  close(): Promise<void>
}

/** Opens a file of an earlier process. Undefined: not even its header is whole. */
export async function reopenFile(path: string): Promise<Reopened | undefined> {
  const handle = await open(path, 'r+')
  const found = await scan(handle)
  if (!found) {
    await handle.close()
    return undefined
  }
  return {
    found,
    async events() {
      const bytes = Buffer.alloc(found.eventsTo - found.eventsFrom)
      await handle.read(bytes, 0, bytes.length, found.eventsFrom)
      return bytes
    },
    async resume() {
      await handle.truncate(found.size)
      return journalFile(handle, found.size, found.lastSeq)
    },
    close: () => handle.close(),
  }
}

function journalFile(
  handle: FileHandle,
  from: number,
  seq: number,
): JournalFile & { write(bytes: Buffer): Promise<void> } {
  let size = from
  let lastSeq = seq
  let finished = false
  const write = async (bytes: Buffer): Promise<void> => {
    try {
      for (let done = 0; done < bytes.length;) {
        done += (await handle.write(bytes, done, bytes.length - done, size + done)).bytesWritten
      }
      size += bytes.length
    } catch (error) {
      // A full disk takes half a line: without it the next attempt begins where this one did.
      await handle.truncate(size).catch(() => {})
      throw error
    }
  }
  return {
    get lastSeq() {
      return lastSeq
    },
    write,
    async append(chunk) {
      const part = after(chunk, lastSeq)
      if (!part) return
      if (part.firstSeq !== lastSeq + 1) throw new Error(`events ${lastSeq + 1} to ${part.firstSeq - 1} are missing`)
      await write(part.lines)
      lastSeq = lastSeqOf(part)
    },
    async finish(end) {
      if (!finished) await write(finishLine(end))
      finished = true
      await handle.datasync()
      await handle.close()
    },
    close: () => handle.close(),
  }
}
