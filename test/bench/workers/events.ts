import { createParser } from 'eventsource-parser'
import type { Dev } from './dev.ts'

/** The events of a run as they come. */
export async function* eventsOf(dev: Dev, runId: string): AsyncGenerator<Record<string, unknown>> {
  const response = await fetch(`${dev.conductorUrl}/api/runs/${runId}/stream`, {
    headers: { authorization: `Bearer ${dev.apiKey}` },
  })
  if (!response.ok) throw new Error(`the stream of ${runId}: ${response.status}`)
  const events: Record<string, unknown>[] = []
  const parser = createParser({ onEvent: ({ data }) => void events.push(JSON.parse(data) as Record<string, unknown>) })
  const text = new TextDecoder()
  for await (const bytes of response.body!) {
    parser.feed(text.decode(bytes, { stream: true }))
    yield* events.splice(0)
  }
}
