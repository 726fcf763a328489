import { sseFrame } from '#kernel'
import { isTerminalType, parseLine, peekType } from '#contracts/run-event'
import type { LogChunk } from '#contracts/runs'

const delta = '{"type":"assistant","runId":"'
const deltaText = ',"text":"'
const deltaEnd = ',"delta":true}'
/** Lines that no client sees, told by their first bytes. */
const silent = [
  '{"type":"progress"',
  '{"type":"usage"',
  '{"type":"session_init"',
  '{"type":"result"',
  '{"type":"error"',
]

/**
 * The client's view of the events of `chunk`, as SSE frames of specification 4.21.1 with the event's seq as their id. The
 * terminal event is left out: its frame names the public run.
 */
export function encodeFrames(chunk: LogChunk, exposeToolEvents: boolean): string {
  const text = chunk.lines.toString('utf8')
  let frames = ''
  let seq = chunk.firstSeq
  for (let start = 0; start < text.length; seq++) {
    let end = text.indexOf('\n', start)
    if (end < 0) end = text.length
    frames += frameOf(text, start, end, seq, exposeToolEvents)
    start = end + 1
  }
  return frames
}

function frameOf(text: string, start: number, end: number, seq: number, exposeToolEvents: boolean): string {
  if (text.startsWith(delta, start)) {
    // The hot case: the text is already JSON, so it moves from one object into the other without being parsed.
    const from = text.indexOf(deltaText, start) + deltaText.length - 1
    const to = end - deltaEnd.length
    if (from > start && from < to && text.startsWith(deltaEnd, to) && closingQuote(text, from) === to - 1) {
      return sseFrame('delta', `{"text":${text.slice(from, to)}}`, seq)
    }
  } else if (silent.some((head) => text.startsWith(head, start))) return ''
  return parsedFrame(text.slice(start, end), seq, exposeToolEvents)
}

/** Where the JSON string that opens at `open` ends. */
function closingQuote(text: string, open: number): number {
  for (let at = text.indexOf('"', open + 1); at >= 0; at = text.indexOf('"', at + 1)) {
    let escapes = 0
    while (text[at - 1 - escapes] === '\\') escapes++
    if (escapes % 2 === 0) return at
  }
  return -1
}

function parsedFrame(line: string, seq: number, exposeToolEvents: boolean): string {
  const event = parseLine(Buffer.from(line))
  if (event?.['type'] === 'assistant') return sseFrame('delta', JSON.stringify({ text: event['text'] }), seq)
  if (!exposeToolEvents) return ''
  if (event?.['type'] === 'tool_call') {
    return sseFrame('tool', JSON.stringify({ id: event['id'], name: event['name'], status: 'running' }), seq)
  }
  if (event?.['type'] === 'tool_result') {
    return sseFrame('tool', JSON.stringify({ id: event['id'], status: event['ok'] === true ? 'ok' : 'error' }), seq)
  }
  return ''
}

/** The terminal event, when `chunk` ends with one. Nothing follows it, so only the last line is looked at. */
export function terminalEvent({ lines }: LogChunk): Record<string, unknown> | undefined {
  const end = lines.at(-1) === 0x0a ? lines.length - 1 : lines.length
  const line = lines.subarray(end > 0 ? lines.lastIndexOf(0x0a, end - 1) + 1 : 0, end)
  return isTerminalType(peekType(line)) ? parseLine(line) : undefined
}
