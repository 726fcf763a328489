import { hasStamp, parseLine, peekType } from '#contracts/run-event'
import type { JournalFinish, JournalHeader } from '#contracts/run-journal'

/** Raised when the form of header or finish changes in a way that older readers misunderstand. */
const version = 1

export const headerLine = (header: JournalHeader): Buffer =>
  Buffer.from(`${JSON.stringify({ type: 'header', version, ...header })}\n`)

const finishStart = '{"type":"finish",'
export const finishLine = (finish: JournalFinish): Buffer =>
  Buffer.from(`${JSON.stringify({ type: 'finish', ...finish })}\n`)
export const isFinish = (line: Buffer): boolean =>
  line.length > finishStart.length && line.toString('latin1', 0, finishStart.length) === finishStart

export function readHeader(line: Buffer): JournalHeader | undefined {
  const parsed = parseLine(line)
  if (parsed?.['type'] !== 'header' || parsed['version'] !== version) return undefined
  const { type: _, version: __, ...header } = parsed
  return header as unknown as JournalHeader
}

export function readFinish(line: Buffer): JournalFinish | undefined {
  const parsed = parseLine(line)
  if (parsed?.['type'] !== 'finish' || typeof parsed['status'] !== 'string') return undefined
  const { type: _, ...finish } = parsed
  return finish as unknown as JournalFinish
}

/** Whether a line is the event of this run with this number. */
export const isEvent = (line: Buffer, runId: string, seq: number): boolean =>
  peekType(line) !== undefined && hasStamp(line, runId, seq) && line.at(-1) === 0x7d
