import { TypeCompiler } from '@sinclair/typebox/compiler'
import { maxLineBytes } from '#kernel'
import { withoutCycles } from '#contracts/circular'
import { type EventEncoder, RuntimeEvent } from '#contracts/run-event'

export type Encoded = { readonly line: string } | { readonly problem: 'invalid' | 'too_large' }

/** Checks an adapter's event and writes it as a stamped line. Never throws, and takes no stamp for an invalid event. */
export type EventWriter = (encoder: EventEncoder, event: unknown) => Encoded

export function createEventWriter(): EventWriter {
  const valid = TypeCompiler.Compile(RuntimeEvent)
  const write = (encoder: EventEncoder, event: RuntimeEvent): string => {
    try {
      return encoder.line(event)
    } catch {
      return encoder.line(withoutCycles(event) as RuntimeEvent)
    }
  }
  return (encoder, event) => {
    try {
      if (!isDelta(event) && !valid.Check(event)) return { problem: 'invalid' }
      const line = write(encoder, unstamped(event))
      return tooLarge(line) ? { problem: 'too_large' } : { line }
    } catch {
      return { problem: 'invalid' }
    }
  }
}

// The hot case: twenty of these for every other event.
const isDelta = (event: unknown): event is Extract<RuntimeEvent, { type: 'assistant' }> =>
  typeof event === 'object' &&
  event !== null &&
  (event as { type?: unknown }).type === 'assistant' &&
  typeof (event as { text?: unknown }).text === 'string'

/** An adapter does not stamp its events: fields of those names would stand in the line twice. */
function unstamped(event: RuntimeEvent): RuntimeEvent {
  if (!('runId' in event || 'sessionId' in event || 'seq' in event || 'at' in event)) return event
  const { runId: _, sessionId: __, seq: ___, at: ____, ...rest } = event as RuntimeEvent & Record<string, unknown>
  return rest as RuntimeEvent
}

/** Later hops refuse a stream with such a line. A UTF-16 unit is at most three bytes. */
const tooLarge = (line: string): boolean =>
  line.length * 3 > maxLineBytes && Buffer.byteLength(line, 'utf8') > maxLineBytes
