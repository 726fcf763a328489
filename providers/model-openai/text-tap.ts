import { randomBytes } from 'node:crypto'
import type {
  LanguageModelV4,
  LanguageModelV4CallOptions,
  LanguageModelV4StreamPart,
  LanguageModelV4StreamResult,
} from '@ai-sdk/provider'
import type { ModelFetch } from '#contracts/model-fetch'

/** Names the call to our own `fetch`; it never leaves this process. */
const callHeader = 'x-agent-orc-call'
const textId = 'text'
/** Parts that wait for the reader before the connection does. */
const queued = 64

/** Takes the plain text out of an answer before the package sees it. */
interface Tap {
  text(delta: string): void
  /** Resolves when the reader of the call has room again; undefined while it has. */
  room(): Promise<void> | undefined
}

export interface TextTap {
  readonly fetch: ModelFetch
  /** The same model; its text takes the short way. */
  wrap(model: LanguageModelV4): LanguageModelV4
}

/**
 * A short way for text. The package sends each delta through four web streams and a schema: 15 µs, more than the rest of
 * the path together. Here the frames that hold nothing but text are read from the bytes and become parts at once; every other
 * frame, and every failure, goes through the package as before. Measured: a stream of 20,000 deltas four times as fast.
 */
export function createTextTap(fetch: ModelFetch): TextTap {
  const taps = new Map<string, Tap>()
  return {
    async fetch(input, init = {}) {
      const { [callHeader]: call, ...headers } = init.headers as Record<string, string>
      const tap = call === undefined ? undefined : taps.get(call)
      const response = await fetch(input, { ...init, headers })
      if (!tap || !response.ok || !response.body) return response
      const { status, statusText } = response
      return new Response(withoutText(response.body, tap), { status, statusText, headers: response.headers })
    },
    wrap: (model) => ({
      specificationVersion: model.specificationVersion,
      provider: model.provider,
      modelId: model.modelId,
      supportedUrls: model.supportedUrls,
      doGenerate: (options) => model.doGenerate(options),
      doStream: (options) => streamWithTap(model, options, taps),
    }),
  }
}

async function streamWithTap(
  model: LanguageModelV4,
  options: LanguageModelV4CallOptions,
  taps: Map<string, Tap>,
): Promise<LanguageModelV4StreamResult> {
  const call = randomBytes(12).toString('base64url')
  const output = createOutput()
  taps.set(call, output)
  try {
    const result = await model.doStream({ ...options, headers: { ...options.headers, [callHeader]: call } })
    void output.forward(result.stream.getReader())
    return { ...result, stream: output.stream }
  } finally {
    taps.delete(call)
  }
}

type Part = LanguageModelV4StreamPart

interface Output extends Tap {
  readonly stream: ReadableStream<Part>
  /** Adds what the package makes of the rest of the answer, and ends as that ends. */
  forward(rest: ReadableStreamDefaultReader<Part>): Promise<void>
}

function createOutput(): Output {
  let output: ReadableStreamDefaultController<Part> | undefined
  let source: ReadableStreamDefaultReader<Part> | undefined
  let resume: (() => void) | undefined
  let failure: { readonly error: unknown } | undefined
  let begun = false
  let over = false
  const stream = new ReadableStream<Part>(
    {
      start: (controller) => void (output = controller),
      pull() {
        resume?.()
        fail()
      },
      cancel(reason) {
        over = true
        resume?.()
        return source?.cancel(reason)
      },
    },
    { highWaterMark: queued },
  )
  // An error empties the queue of a stream, but text that arrived before it was said: it is read first.
  const fail = (): void => {
    if (!failure || over || output!.desiredSize !== queued) return
    over = true
    output!.error(failure.error)
  }
  return {
    stream,
    text(delta) {
      if (over) return
      if (!begun) output!.enqueue({ type: 'text-start', id: textId })
      begun = true
      output!.enqueue({ type: 'text-delta', id: textId, delta })
    },
    room() {
      if (over || output!.desiredSize! > 0) return undefined
      return new Promise((resolve) => {
        resume = resolve
      })
    },
    async forward(rest) {
      source = rest
      try {
        for (let next = await rest.read(); !next.done && !over; next = await rest.read()) {
          if (next.value.type === 'finish' && begun) output!.enqueue({ type: 'text-end', id: textId })
          output!.enqueue(next.value)
        }
        if (!over) output!.close()
        over = true
      } catch (error) {
        failure = { error }
        fail()
      }
    },
  }
}

/** The bytes of an event stream without the frames that are only text: those go to the tap. */
function withoutText(body: ReadableStream<Uint8Array>, tap: Tap): ReadableStream<Uint8Array> {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  const encoder = new TextEncoder()
  let pending = ''
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        for (;;) {
          await tap.room()
          const { done, value } = await reader.read()
          pending += done ? decoder.decode() : decoder.decode(value, { stream: true })
          if (pending.includes('\r')) pending = pending.replaceAll('\r\n', '\n')
          const end = done ? pending.length : pending.lastIndexOf('\n\n') + 2
          const whole = end > 1 ? pending.slice(0, end) : ''
          if (whole !== '') pending = pending.slice(end)
          let others = ''
          for (const frame of whole.split('\n\n')) {
            const text = plainText(frame)
            if (text !== undefined) tap.text(text)
            else if (frame !== '') others += `${frame}\n\n`
          }
          if (others !== '') controller.enqueue(encoder.encode(others))
          if (done) return controller.close()
          if (others !== '') return
        }
      },
      cancel: (reason) => reader.cancel(reason),
    },
    { highWaterMark: 0 },
  )
}

/** The text of a frame that says nothing else; undefined for every other frame. */
function plainText(frame: string): string | undefined {
  if (!frame.startsWith('data: {') || frame.includes('\n')) return undefined
  let value: Chunk
  try {
    value = JSON.parse(frame.slice(6)) as Chunk
  } catch {
    return undefined
  }
  const choice = value.choices?.[0]
  const delta = choice?.delta
  if (!delta || value.choices?.length !== 1 || value.usage || value.error !== undefined) return undefined
  if (isSet(choice.finish_reason) || typeof delta.content !== 'string' || delta.content === '') return undefined
  for (const key in delta) if (key !== 'content' && key !== 'role' && isSet(delta[key])) return undefined
  return delta.content
}

const isSet = (value: unknown): boolean => value !== null && value !== undefined

interface Chunk {
  readonly choices?: readonly { readonly delta?: Readonly<Record<string, unknown>>; readonly finish_reason?: unknown }[]
  readonly usage?: unknown
  readonly error?: unknown
}
