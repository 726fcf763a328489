import { type FileHandle, open } from 'node:fs/promises'
import type { Profile } from '#contracts/profiles'
import { after, hasStamp, lastSeqOf, type LogChunk, parseLine, peekType, type Usage } from '#contracts/run-event'
import type { RunSummary, SubTask, TerminalRunStatus } from '#contracts/runs'

/** The fields of a run that it has from its start, and that its task does not give: attachments without their contents, and where it comes from. */
export type Shown = Pick<RunSummary, 'parent' | 'queuedAt'> &
  Pick<RunSummary['subTask'], 'attachments' | 'responseFormat'>

/** First line of a run's file. */
export interface JournalHeader {
  readonly tenantId: string
  readonly runId: string
  readonly sessionId: string
  readonly task: SubTask
  readonly startedAt: string
  /** What the run shows besides. */
  readonly shown?: Shown
  /** The session's snapshot of its profile. Present only in the file of the run that created the session. */
  readonly create?: Profile
}

/** Last line of a finished run's file. The answer itself is in the `result` event. */
export interface JournalFinish {
  readonly status: TerminalRunStatus
  readonly finishedAt: string
  /** How often the run was started, if more than once. */
  readonly attempt?: number
  readonly error?: { readonly code: string; readonly message: string }
  readonly usage?: Usage
}

/** Increase this when the header or the finish line changes in a way that older readers misunderstand. */
const version = 1
const finishStart = '{"type":"finish",'

/**
 * The append-only JSONL file of one run: a header line, the event lines, a finish line. Specification 2.7. Its methods must not be called
 * concurrently.
 */
export class JournalFile {
  readonly header: JournalHeader
  readonly #handle: FileHandle
  /** The length of the valid part of the file. Bytes behind it are overwritten. */
  #size = 0
  #eventsFrom = 0
  #eventsTo = 0
  #lastSeq = 0
  #ending: JournalFinish | undefined

  private constructor(handle: FileHandle, header: JournalHeader) {
    this.#handle = handle
    this.header = header
  }

  /** Creates the file of a run. Rejects with `EEXIST` when the file exists. */
  static async create(path: string, header: JournalHeader): Promise<JournalFile> {
    const file = new JournalFile(await open(path, 'wx'), header)
    try {
      await file.#write(Buffer.from(`${JSON.stringify({ type: 'header', version, ...header })}\n`))
      file.#eventsFrom = file.#eventsTo = file.#size
      return file
    } catch (error) {
      await file.close()
      throw error
    }
  }
  /** Opens the file of an earlier process and drops its torn tail. Undefined: even the header is incomplete. */
  static async reopen(path: string): Promise<JournalFile | undefined> {
    const handle = await open(path, 'r+')
    let file: JournalFile | undefined
    for await (const { line, end } of linesOf(handle)) {
      if (!file) {
        const header = readHeader(line)
        if (!header) break
        file = new JournalFile(handle, header)
        file.#eventsFrom = file.#eventsTo = end
      } else if (isEvent(line, file.header.runId, file.lastSeq + 1)) {
        file.#lastSeq++
        file.#eventsTo = end
      } else {
        file.#ending = readFinish(line)
        if (file.#ending) file.#size = end
        break
      }
      file.#size = end
    }
    if (!file) await handle.close()
    else if (!file.#ending) await handle.truncate(file.#size)
    return file
  }

  /** The `seq` of the last event in the file; 0 when there is none. */
  get lastSeq(): number {
    return this.#lastSeq
  }
  /** The finish line. Nothing is written to the file after it. */
  get ending(): JournalFinish | undefined {
    return this.#ending
  }
  /** The events that the file holds. */
  async events(): Promise<LogChunk | undefined> {
    const lines = Buffer.alloc(this.#eventsTo - this.#eventsFrom)
    await this.#handle.read(lines, 0, lines.length, this.#eventsFrom)
    return this.#lastSeq === 0 ? undefined : { firstSeq: 1, count: this.#lastSeq, lines }
  }
  /** Appends those events of a chunk that the file lacks. Throws when the chunk would leave a gap. */
  async append(chunk: LogChunk): Promise<void> {
    const part = after(chunk, this.#lastSeq)
    if (!part) return
    if (part.firstSeq !== this.#lastSeq + 1) {
      throw new Error(`events ${this.#lastSeq + 1} to ${part.firstSeq - 1} are missing`)
    }
    await this.#write(part.lines)
    this.#lastSeq = lastSeqOf(part)
    this.#eventsTo = this.#size
  }
  /** Ends and closes the file. The file is durable when this resolves; after a failure the call may be repeated. */
  async finish(ending: JournalFinish): Promise<void> {
    if (!this.#ending) await this.#write(Buffer.from(`${finishStart}${JSON.stringify(ending).slice(1)}\n`))
    this.#ending = ending
    await this.#handle.datasync()
    await this.#handle.close()
  }
  close(): Promise<void> {
    return this.#handle.close()
  }

  async #write(bytes: Buffer): Promise<void> {
    try {
      for (let done = 0; done < bytes.length;) {
        done += (await this.#handle.write(bytes, done, bytes.length - done, this.#size + done)).bytesWritten
      }
      this.#size += bytes.length
    } catch (error) {
      // A full disk may have written half a line. Truncate it, so that the next attempt starts at the same place.
      await this.#handle.truncate(this.#size).catch(() => {})
      throw error
    }
  }
}

/** When the run of a file began, read from the header line alone. Undefined: the header is incomplete. */
export async function readStart(path: string): Promise<string | undefined> {
  const handle = await open(path, 'r')
  try {
    for await (const { line } of linesOf(handle, 16 * 1024)) return readHeader(line)?.startedAt
    return undefined
  } finally {
    await handle.close()
  }
}

/** True when the last line is a whole finish line. It only reads the end of the file, because at a start most files are finished. */
export async function isFinished(path: string): Promise<boolean> {
  const handle = await open(path, 'r')
  try {
    const { size } = await handle.stat()
    const tail = Buffer.alloc(Math.min(size, 8 * 1024))
    const { bytesRead } = await handle.read(tail, 0, tail.length, size - tail.length)
    if (bytesRead === 0 || tail[bytesRead - 1] !== 0x0a) return false
    const start = tail.lastIndexOf(0x0a, bytesRead - 2) + 1
    return readFinish(tail.subarray(start, bytesRead - 1)) !== undefined
  } finally {
    await handle.close()
  }
}

function readHeader(line: Buffer): JournalHeader | undefined {
  const { type, version: written, ...header } = parseLine(line) ?? {}
  return type === 'header' && written === version ? (header as unknown as JournalHeader) : undefined
}
function readFinish(line: Buffer): JournalFinish | undefined {
  if (line.toString('latin1', 0, finishStart.length) !== finishStart) return undefined
  const { type: _, ...finish } = parseLine(line) ?? {}
  return typeof finish['status'] === 'string' ? (finish as unknown as JournalFinish) : undefined
}
/** Whether a line is event `seq` of this run. */
const isEvent = (line: Buffer, runId: string, seq: number): boolean =>
  peekType(line) !== undefined && hasStamp(line, runId, seq) && line.at(-1) === 0x7d

/** Complete lines without their newline, each with its end offset in the file. */
async function* linesOf(file: FileHandle, readBytes = 256 * 1024): AsyncGenerator<{ line: Buffer; end: number }> {
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
