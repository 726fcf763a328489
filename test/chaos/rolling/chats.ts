import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Answer, ask, open, type Reading } from '../client.ts'
import type { Observation, Seen } from '../observed.ts'
import type { Agent } from '../stories.ts'
import { questionOf, wordMs } from './model.ts'

/** Where clients find the service: a ready gateway, chosen anew for each request. */
export interface Target {
  readonly agent: Agent
  gateway(): string
}

export interface Question {
  readonly words: number
  readonly tag: string
  readonly streamed: boolean
  readonly conversation: string | undefined
}

/** One chat as its client experienced it. */
export interface Told {
  readonly question: Question
  /** How many turns of its conversation had ended well before. */
  readonly turnsBefore: number
  readonly conversationId?: string
  /** Undefined when it was never accepted. */
  readonly observation?: Observation
  /** Why the client gave up, in a sentence. */
  readonly gaveUp?: string
  /** The answer as `done`, or the synchronous reply, gave it. */
  readonly answer?: string
  /** Streams that ended with `: closing`, and that just broke. */
  readonly closed: number
  readonly broken: number
  /** Requests that were sent again, under the same idempotency key. */
  readonly repeated: number
  /** From the first request until a stream was accepted, or a whole answer was there, less the time that the model took for it. */
  readonly waitedMs: number
  /** The longest time without an event, from the first one on; across connections. */
  readonly longestGapMs: number
}

const againMs = 100
/** How long a chat is sent again until it is accepted, and how long an accepted one is asked for. */
const patienceMs = 60_000
const answerMs = 40_000

const text = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined)

/** Sends one message and reads the answer to its end, as the documentation says that a client should. Never rejects. */
export async function chat(target: Target, question: Question, turnsBefore: number): Promise<Told> {
  const told = question.streamed ? await streamed(target, question) : await whole(target, question)
  return { ...told, question, turnsBefore }
}

type Lived = Omit<Told, 'question' | 'turnsBefore'>

const urlOf = ({ agent, gateway }: Target): string => `${gateway()}/v1/chat/default/${agent.slug}`

const bodyOf = ({ words, tag, conversation }: Question): object => ({
  message: questionOf(words, tag),
  ...(conversation === undefined ? {} : { conversation_id: conversation }),
})

/** True when this gateway has no answer yet: another gateway has one, or the same one later. */
const isNotYet = ({ status, body }: Pick<Answer, 'status' | 'body'>): boolean =>
  status === 503 || status === 504 || (status === 409 && String(body['error']).startsWith('idempotency_in_flight'))

const refusal = (what: string, answer: Pick<Answer, 'status' | 'body'> | undefined): string =>
  answer
    ? `${what}: ${answer.status} ${String(answer.body['error'])}: ${String(answer.body['message'])}`
    : `${what}: no answer`

async function whole(target: Target, question: Question): Promise<Lived> {
  const lived = { closed: 0, broken: 0, longestGapMs: 0 }
  const key = randomBytes(12).toString('hex')
  const began = performance.now()
  const until = began + patienceMs
  for (let repeated = 0; ; repeated++) {
    const answer = await ask(urlOf(target), target.agent.key, 'POST', bodyOf(question), answerMs, key).catch(
      () => undefined,
    )
    if ((!answer || isNotYet(answer)) && performance.now() < until) {
      await sleep(againMs)
      continue
    }
    const id = text(answer?.body['public_run_id'])
    const said = answer?.status === 200 ? text(answer.body['message']) : undefined
    const conversationId = text(answer?.body['conversation_id'])
    const ended = answer !== undefined && !isNotYet(answer)
    return {
      ...lived,
      repeated,
      waitedMs: Math.max(0, performance.now() - began - question.words * wordMs),
      ...(conversationId === undefined ? {} : { conversationId }),
      ...(said === undefined ? { gaveUp: refusal('refused', answer) } : { answer: said }),
      ...(id === undefined
        ? {}
        : {
            observation: {
              kind: 'chat',
              id,
              readings: [],
              cancelled: false,
              ended,
              ...(said === undefined ? {} : { answer: said }),
            },
          }),
    }
  }
}

async function streamed(target: Target, question: Question): Promise<Lived> {
  const key = randomBytes(12).toString('hex')
  const began = performance.now()
  const until = began + patienceMs
  for (let repeated = 0; ; repeated++) {
    const first = await open(
      `${urlOf(target)}/stream`,
      target.agent.key,
      'POST',
      bodyOf(question),
      0,
      answerMs,
      key,
    ).catch(() => undefined)
    const waitedMs = performance.now() - began
    if (first?.status === 200) return { ...(await follow(target, first)), repeated, waitedMs }
    if ((!first || isNotYet(first)) && performance.now() < until) {
      await sleep(againMs)
      continue
    }
    const id = text(first?.body['public_run_id'])
    const ended = first !== undefined && !isNotYet(first)
    return {
      closed: 0,
      broken: 0,
      longestGapMs: 0,
      repeated,
      waitedMs,
      gaveUp: refusal('refused', first),
      ...(id === undefined ? {} : { observation: { kind: 'chat', id, readings: [], cancelled: false, ended } }),
    }
  }
}

/** Reads a stream. When it ends before the run does, it resumes at any gateway after the last event it has. */
async function follow(target: Target, first: Reading): Promise<Omit<Lived, 'repeated' | 'waitedMs'>> {
  const id = first.headers.get('x-public-run-id') ?? ''
  const conversationId = first.headers.get('x-conversation-id') ?? undefined
  const readings: Seen[][] = []
  let closed = 0
  let broken = 0
  let last = 0
  let heardAt: number | undefined
  let longestGapMs = 0
  let end: Seen | undefined
  const read = async (reading: Reading): Promise<void> => {
    const events: Seen[] = []
    readings.push(events)
    for await (const event of reading.events) {
      const now = performance.now()
      longestGapMs = Math.max(longestGapMs, now - (heardAt ?? now))
      heardAt = now
      events.push(event)
      last = Math.max(last, event.seq)
      if (event.type === 'done' || event.type === 'error') {
        end = event
        return
      }
    }
    if (reading.closing()) closed++
    else broken++
  }
  await read(first)
  let problem: string | undefined
  for (let until = performance.now() + patienceMs; !end && performance.now() < until;) {
    const before = last
    const url = `${urlOf(target)}/runs/${id}/stream`
    const reading = await open(url, target.agent.key, 'GET', undefined, last, answerMs).catch(() => undefined)
    if (reading?.status === 200) await read(reading)
    else problem = refusal('not resumed', reading)
    if (last > before) until = performance.now() + patienceMs
    else if (!end) await sleep(againMs)
  }
  const answer = end?.type === 'done' ? end.text : undefined
  return {
    ...(conversationId === undefined ? {} : { conversationId }),
    ...(end ? {} : { gaveUp: problem ?? 'its stream never ended' }),
    ...(answer === undefined ? {} : { answer }),
    observation: { kind: 'chat', id, readings, cancelled: false, ended: end !== undefined },
    closed,
    broken,
    longestGapMs,
  }
}
