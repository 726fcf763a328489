import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { ask, open, type Reading } from './client.ts'
import type { Observation, Seen } from './observed.ts'
import type { Random } from './random.ts'

/** A published agent. */
export interface Agent {
  readonly profile: string
  readonly slug: string
  readonly key: string
}

/** Where clients find the service. */
export interface Client {
  readonly apiKey: string
  readonly gateways: readonly string[]
  readonly conductors: readonly string[]
  /** True as long as clients go on trying: while parts are broken on purpose, and for a while after that. */
  patient(): boolean
}

/** What a client does with a chat: it stays, leaves and resumes, or cancels. */
export type Habit = 'stays' | 'leaves' | 'cancels'

const answerMs = 30_000
const retryMs = 400

const wait = (): Promise<unknown> => sleep(retryMs)
const text = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined)

/** Tells the stand-in model how many words to write, and how long to take for each. */
function prompt(random: Random, agent: Agent): string {
  const long = random.chance(0.15)
  const words = Math.round(random.between(3, long ? 120 : 30))
  const tool = { tooled: ' tool', asking: ' pay' }[agent.profile] ?? ''
  return `words=${words} delay=${Math.round(random.between(0, 40))}${tool} #${randomBytes(4).toString('hex')}`
}

interface Told {
  readonly observation: Observation | undefined
  readonly conversationId: string | undefined
}

/** Sends a message and waits for the whole answer. It sends again when it does not know that the message was accepted. */
export async function chatWhole(
  client: Client,
  random: Random,
  agent: Agent,
  conversation: string | undefined,
  habit: Habit,
): Promise<Told> {
  const message = prompt(random, agent)
  while (client.patient()) {
    const base = chatUrl(client, random, agent)
    const body = { message, ...(conversation === undefined ? {} : { conversation_id: conversation }) }
    const answer = await ask(base, agent.key, 'POST', body, answerMs).catch(() => undefined)
    const id = text(answer?.body['public_run_id'])
    if (!answer || id === undefined) {
      await wait()
      continue
    }
    const conversationId = text(answer.body['conversation_id'])
    if (habit === 'cancels') await ask(`${base}/runs/${id}`, agent.key, 'DELETE', undefined, answerMs).catch(() => {})
    const known = { kind: 'chat', id, readings: [], cancelled: habit === 'cancels' } as const
    if (answer.status === 200)
      return told({ ...known, ended: true, answer: text(answer.body['message'])! }, conversationId)
    if (answer.status === 502 || answer.status === 410) return told({ ...known, ended: true }, conversationId)
    const end = await poll(client, random, agent, id)
    return told({ ...known, ...end }, conversationId)
  }
  return { observation: undefined, conversationId: undefined }
}

const told = (observation: Observation, conversationId: string | undefined): Told => ({ observation, conversationId })

const chatUrl = (client: Client, random: Random, agent: Agent): string =>
  `${random.pick(client.gateways)}/v1/chat/default/${agent.slug}`

/** Asks for a run until it has ended. */
async function poll(
  client: Client,
  random: Random,
  agent: Agent,
  id: string,
): Promise<{ ended: boolean; answer?: string }> {
  while (client.patient()) {
    const url = `${chatUrl(client, random, agent)}/runs/${id}`
    const answer = await ask(url, agent.key, 'GET', undefined, answerMs).catch(() => undefined)
    if (answer?.status === 200) return { ended: true, answer: text(answer.body['message'])! }
    if (answer?.status === 502 || answer?.status === 410) return { ended: true }
    await wait()
  }
  return { ended: false }
}

/** Sends a message and follows the answer, over as many connections as it takes. */
export async function chatStreamed(
  client: Client,
  random: Random,
  agent: Agent,
  conversation: string | undefined,
  habit: Habit,
): Promise<Told> {
  const message = prompt(random, agent)
  const body = { message, ...(conversation === undefined ? {} : { conversation_id: conversation }) }
  while (client.patient()) {
    const url = `${chatUrl(client, random, agent)}/stream`
    const first = await open(url, agent.key, 'POST', body, 0, answerMs).catch(() => undefined)
    const id = first?.headers.get('x-public-run-id') ?? text(first?.body['public_run_id'])
    if (!first || id === undefined) {
      await wait()
      continue
    }
    const conversationId = first.headers.get('x-conversation-id') ?? text(first.body['conversation_id'])
    const observation = await followToTheEnd({
      kind: 'chat',
      id,
      first,
      habit,
      client,
      random,
      isEnd: (type) => type === 'done' || type === 'error',
      resume: (after) =>
        open(`${chatUrl(client, random, agent)}/runs/${id}/stream`, agent.key, 'GET', undefined, after, answerMs),
      cancel: () => ask(`${chatUrl(client, random, agent)}/runs/${id}`, agent.key, 'DELETE', undefined, answerMs),
    })
    return { observation, conversationId }
  }
  return { observation: undefined, conversationId: undefined }
}

/** Starts a run at the conductor under an id of its own choice, so that it may be asked for again, and follows it. */
export async function runDirectly(client: Client, random: Random, agent: Agent): Promise<Observation | undefined> {
  const id = `chaos-${randomBytes(8).toString('hex')}`
  const body = { id, profile: agent.profile, prompt: prompt(random, agent) }
  const at = (path: string): string => `${random.pick(client.conductors)}${path}`
  for (; client.patient(); await wait()) {
    const answer = await ask(at('/api/runs'), client.apiKey, 'POST', body, answerMs).catch(() => undefined)
    // `conflict`: an earlier try came through, and only its answer was lost.
    if (answer?.status !== 202 && answer?.status !== 409) continue
    const url = `/api/runs/${id}/stream`
    return followToTheEnd({
      kind: 'run',
      id,
      first: undefined,
      habit: random.chance(0.1) ? 'cancels' : random.chance(0.2) ? 'leaves' : 'stays',
      client,
      random,
      isEnd: (type) => type === 'result' || type === 'error',
      resume: (after) => open(at(url), client.apiKey, 'GET', undefined, after, answerMs),
      cancel: () => ask(at(`/api/runs/${id}`), client.apiKey, 'DELETE', undefined, answerMs),
    })
  }
  return undefined
}

interface Following {
  readonly kind: Observation['kind']
  readonly id: string
  readonly first: Reading | undefined
  readonly habit: Habit
  readonly client: Client
  readonly random: Random
  isEnd(type: string): boolean
  resume(after: number): Promise<Reading>
  cancel(): Promise<unknown>
}

async function followToTheEnd(following: Following): Promise<Observation> {
  const { kind, id, habit, client, random, isEnd } = following
  const readings: Seen[][] = []
  let cancelled = false
  let left = habit !== 'leaves'
  let last = 0
  const read = async (reading: Reading): Promise<boolean> => {
    const events: Seen[] = []
    readings.push(events)
    for await (const event of reading.events) {
      events.push(event)
      if (isEnd(event.type)) return true
      last = Math.max(last, event.seq)
      if (habit === 'cancels' && !cancelled) {
        cancelled = true
        void following.cancel().catch(() => {})
      }
      if (!left && events.length >= 3) {
        left = true
        reading.leave()
        await sleep(random.between(100, 3_000))
        return false
      }
    }
    return false
  }
  // A first answer that is no stream has said how the run ended, or that it goes on elsewhere.
  const over = following.first?.status === 502 || following.first?.status === 410
  if (over) return { kind, id, readings, cancelled, ended: true }
  let ended = following.first?.status === 200 && (await read(following.first))
  while (!ended && client.patient()) {
    const reading = await following.resume(last).catch(() => undefined)
    if (reading?.status === 200) ended = await read(reading)
    if (!ended) await wait()
  }
  return { kind, id, readings, cancelled, ended }
}
