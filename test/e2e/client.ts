import { createParser } from 'eventsource-parser'
import type { Agent } from './cluster.ts'

export interface Frame {
  readonly event: string
  readonly id: string | undefined
  readonly data: Record<string, unknown>
}

export interface Reply {
  readonly status: number
  readonly headers: Headers
  readonly body: Record<string, unknown>
}

const headers = (agent: Agent, extra: Record<string, string> = {}): Record<string, string> => ({
  authorization: `Bearer ${agent.key}`,
  'content-type': 'application/json',
  ...extra,
})

/** Sends a synchronous chat. */
export async function chat(
  agent: Agent,
  body: Record<string, unknown>,
  extra: Record<string, string> = {},
): Promise<Reply> {
  const response = await fetch(agent.url, {
    method: 'POST',
    headers: headers(agent, extra),
    body: JSON.stringify(body),
  })
  return {
    status: response.status,
    headers: response.headers,
    body: (await response.json()) as Record<string, unknown>,
  }
}

export interface Streamed {
  readonly response: Response
  /** Frames as they arrive; ends with the stream. */
  readonly frames: AsyncGenerator<Frame>
  /** Leaves without reading the rest, as a closed browser tab does. */
  leave(): void
}

export async function chatStream(agent: Agent, body: Record<string, unknown>): Promise<Streamed> {
  return open(`${agent.url}/stream`, { method: 'POST', headers: headers(agent), body: JSON.stringify(body) })
}

export async function resumeStream(agent: Agent, publicRunId: string, after?: string): Promise<Streamed> {
  const extra: Record<string, string> = after === undefined ? {} : { 'last-event-id': after }
  return open(`${agent.url}/runs/${publicRunId}/stream`, { headers: headers(agent, extra) })
}

export async function get(agent: Agent, path: string): Promise<Reply> {
  const response = await fetch(`${agent.url}${path}`, { headers: { authorization: `Bearer ${agent.key}` } })
  return {
    status: response.status,
    headers: response.headers,
    body: (await response.json()) as Record<string, unknown>,
  }
}

async function open(url: string, init: RequestInit): Promise<Streamed> {
  const abort = new AbortController()
  const response = await fetch(url, { ...init, signal: abort.signal })
  return { response, frames: parse(response), leave: () => abort.abort() }
}

async function* parse(response: Response): AsyncGenerator<Frame> {
  const ready: Frame[] = []
  const parser = createParser({
    onEvent: (e) =>
      void ready.push({ event: e.event ?? 'message', id: e.id, data: JSON.parse(e.data) as Record<string, unknown> }),
  })
  const decoder = new TextDecoder()
  for await (const bytes of response.body!) {
    parser.feed(decoder.decode(bytes as Uint8Array, { stream: true }))
    yield* ready.splice(0)
  }
}

export async function all(stream: Streamed): Promise<Frame[]> {
  const frames: Frame[] = []
  for await (const frame of stream.frames) frames.push(frame)
  return frames
}

export const text = (frames: readonly Frame[]): string =>
  frames
    .filter((f) => f.event === 'delta')
    .map((f) => f.data.text as string)
    .join('')

export const terminals = (frames: readonly Frame[]): Frame[] =>
  frames.filter((f) => f.event === 'done' || f.event === 'error')
