import type { Expected, Format } from './job.ts'

/** Reads one answer as it arrives and checks it. It parses no more than that takes, because the client shares the machine. */
export interface Answer {
  /** Characters of text seen so far. */
  readonly characters: number
  readonly conversation: string | undefined
  read(chunk: Buffer): void
  /** Why the finished answer is wrong; undefined when it is right. */
  fault(expect: Expected): string | undefined
  /** The end of what arrived, for an error message. */
  rest(): string
}

const shapes = {
  openai: { text: '"content":"', end: 'data: [DONE]' },
  gateway: { text: '"text":"', end: 'event: done' },
} as const

/** `lateMs` is asked for with each delta that carries its send time: where its lateness goes changes as streams open and end. */
export function createAnswer(format: Format, lateMs: (() => number[] | undefined) | undefined): Answer {
  if (format === 'accepted') return acceptedAnswer()
  return format === 'sync' ? syncAnswer() : streamAnswer(shapes[format], lateMs)
}

function streamAnswer(shape: { text: string; end: string }, lateMs: (() => number[] | undefined) | undefined): Answer {
  let rest = ''
  let last = ''
  let ended = false
  let characters = 0
  let conversation: string | undefined
  return {
    get characters() {
      return characters
    },
    get conversation() {
      return conversation
    },
    read(chunk) {
      const text = rest + chunk.toString('latin1')
      last = text
      const whole = text.lastIndexOf('\n\n') + 2
      if (whole === 1) {
        rest = text
        return
      }
      rest = text.slice(whole)
      // The stand-in's text needs no escapes, so the next quote ends it.
      for (let at = text.indexOf(shape.text); at >= 0 && at < whole; at = text.indexOf(shape.text, at)) {
        const from = at + shape.text.length
        at = text.indexOf('"', from)
        characters += at - from
        if (lateMs && at > from) recordLateness(text.slice(from, at), lateMs())
      }
      if (text.includes(shape.end)) {
        ended = true
        conversation = /"conversation_id":"([^"]+)"/.exec(text)?.[1]
      }
    },
    fault(expect) {
      if (!ended) return `the stream ended without '${shape.end}': ${last.slice(-300)}`
      return wrongLength(characters, expect)
    },
    rest: () => last.slice(-300),
  }
}

// A frame may carry several deltas joined, each one its send time and a space.
function recordLateness(text: string, lateMs: number[] | undefined): void {
  if (!lateMs) return
  const now = performance.timeOrigin + performance.now()
  for (const sent of text.trim().split(' ')) lateMs.push(now - Number(sent))
}

function syncAnswer(): Answer {
  const parts: Buffer[] = []
  let body: { message?: unknown; conversation_id?: unknown } = {}
  return {
    get characters() {
      return typeof body.message === 'string' ? body.message.length : 0
    },
    get conversation() {
      return typeof body.conversation_id === 'string' ? body.conversation_id : undefined
    },
    read: (chunk) => {
      parts.push(chunk)
    },
    fault(expect) {
      const text = Buffer.concat(parts).toString()
      try {
        body = JSON.parse(text) as typeof body
      } catch {
        return `not JSON: ${text.slice(0, 300)}`
      }
      return typeof body.message === 'string' ? wrongLength(body.message.length, expect) : text.slice(0, 300)
    },
    rest: () => Buffer.concat(parts).toString().slice(0, 300),
  }
}

/** The answer to a submitted run. */
function acceptedAnswer(): Answer {
  let text = ''
  return {
    characters: 0,
    conversation: undefined,
    read: (chunk) => {
      text += chunk.toString('latin1')
    },
    fault: () => (text.includes('"runId":"') ? undefined : text.slice(0, 300)),
    rest: () => text.slice(0, 300),
  }
}

const wrongLength = (characters: number, expect: Expected): string | undefined =>
  expect.characters === undefined || expect.characters === characters
    ? undefined
    : `${characters} characters of text arrived, not ${expect.characters}`
