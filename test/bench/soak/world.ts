import { ask, open, type Answer, type Reading } from '../../chaos/client.ts'
import type { Random } from '../../chaos/random.ts'
import type { Agent } from '../agents.ts'
import type { Receiver } from './receiver.ts'

/** The service and what the stories share. */
export interface World {
  readonly random: Random
  /** Answers with 20 deltas at once, with 20 packets, and in four seconds. */
  readonly agents: { readonly burst: Agent; readonly tick: Agent; readonly slow: Agent }
  readonly receiver: Receiver
  /** Conversations that no story uses now, oldest first. */
  readonly conversations: Conversation[]
  /** How many requests were sent. */
  requests: number
  gateway(): string
  conductor(): string
  readonly apiKey: string
}

export interface Conversation {
  readonly id: string
  readonly agent: Agent
  readonly key: string
  /** How many more messages it gets before it is abandoned. */
  readonly left: number
}

/** So many that a conversation rests for minutes before it continues, and its session has left the runner's memory. */
const keptConversations = 300
const messagesPerConversation = 6
const answerMs = 30_000

export const newConversation = (world: World, agent: Agent, id: string): Conversation => ({
  id,
  agent,
  key: keyOf(world, agent),
  left: messagesPerConversation,
})

export function rest(world: World, conversation: Conversation): void {
  if (conversation.left > 1) world.conversations.push({ ...conversation, left: conversation.left - 1 })
  if (world.conversations.length > keptConversations) world.conversations.shift()
}

export const keyOf = (world: World, agent: Agent): string => world.random.pick(agent.keys)

/** A request that must be answered with `status`. */
export async function expect(
  world: World,
  status: number,
  url: string,
  key: string,
  method = 'GET',
  body?: unknown,
  idempotencyKey?: string,
): Promise<Answer> {
  world.requests++
  const answer = await (idempotencyKey === undefined
    ? ask(url, key, method, body, answerMs)
    : askOnce(url, key, body, idempotencyKey))
  if (answer.status !== status) {
    const path = new URL(url).pathname.replaceAll(/[a-z]+_[\w-]{8,}|sess-[\w-]+|[0-9a-f-]{16,}/g, '*')
    throw new Error(`${method} ${path}: ${answer.status} ${reasonOf(answer.body)}, not ${status}`)
  }
  return answer
}

/** The error without the id of the request, so that equal errors are counted together. */
const reasonOf = ({ error, message }: Answer['body']): string => [error, message].filter(Boolean).join(': ')

async function askOnce(url: string, key: string, body: unknown, idempotencyKey: string): Promise<Answer> {
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${key}`,
      'content-type': 'application/json',
      'idempotency-key': idempotencyKey,
    },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(answerMs),
  })
  const text = await response.text()
  return { status: response.status, headers: response.headers, body: JSON.parse(text) as Answer['body'] }
}

/** A stream that must open. */
export async function stream(
  world: World,
  url: string,
  key: string,
  method: 'GET' | 'POST' = 'GET',
  body?: unknown,
  after = 0,
): Promise<Reading> {
  world.requests++
  const reading = await open(url, key, method, body, after, answerMs)
  if (reading.status !== 200) throw new Error(`${method} stream: ${reading.status} ${reasonOf(reading.body)}`)
  return reading
}

/** Reads a stream to its end, which must be one of `ends`. */
export async function readTo(reading: Reading, ...ends: readonly string[]): Promise<void> {
  let last = ''
  let seq = 0
  for await (const event of reading.events) {
    if (event.seq !== 0 && event.seq <= seq) throw new Error(`event ${event.seq} came after event ${seq}`)
    seq = event.seq || seq
    last = event.type
  }
  if (!ends.includes(last)) throw new Error(`a stream ended with '${last}', not with ${ends.join(' or ')}`)
}

/** Waits for the first event of a type: its sequence number. */
export async function firstOf(reading: Reading, type: string): Promise<number> {
  for (;;) {
    const { value, done } = await reading.events.next()
    if (done) throw new Error(`a stream ended before its first '${type}'`)
    if (value.type === type) return value.seq
  }
}
