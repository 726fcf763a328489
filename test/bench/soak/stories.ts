import { randomUUID } from 'node:crypto'
import type { Agent } from '../agents.ts'
import {
  type Conversation,
  expect,
  firstOf,
  keyOf,
  newConversation,
  readTo,
  rest,
  stream,
  type World,
} from './world.ts'

/** What one person or program does. It throws when anything is wrong, and tries nothing twice. */
export type Story = (world: World) => Promise<void>

const message = (): string => `Tell me something. ${randomUUID()}`
const streamUrl = (world: World, { path }: Agent): string => `${world.gateway()}${path}/stream`
const runUrl = (world: World, { path }: Agent, id: string): string => `${world.gateway()}${path}/runs/${id}`

async function streamed(world: World, agent: Agent, known?: Conversation): Promise<void> {
  const key = known?.key ?? keyOf(world, agent)
  const body = { message: message(), ...(known ? { conversation_id: known.id } : {}) }
  const reading = await stream(world, streamUrl(world, agent), key, 'POST', body)
  await readTo(reading, 'done')
  rest(world, known ?? newConversation(world, agent, reading.headers.get('x-conversation-id') ?? ''))
}

const begins: Story = (world) => streamed(world, world.random.pick([world.agents.burst, world.agents.tick]))

const goesOn: Story = async (world) => {
  const known = world.conversations.shift()
  await (known ? streamed(world, known.agent, known) : begins(world))
}

const waits: Story = async (world) => {
  const agent = world.agents.burst
  const key = keyOf(world, agent)
  const { body } = await expect(world, 200, `${world.gateway()}${agent.path}`, key, 'POST', { message: message() })
  rest(world, newConversation(world, agent, String(body['conversation_id'])))
}

const repeats: Story = async (world) => {
  const { path } = world.agents.burst
  const key = keyOf(world, world.agents.burst)
  const body = { message: message() }
  const once = randomUUID()
  const first = await expect(world, 200, `${world.gateway()}${path}`, key, 'POST', body, once)
  const again = await expect(world, 200, `${world.gateway()}${path}`, key, 'POST', body, once)
  if (first.body['public_run_id'] !== again.body['public_run_id']) throw new Error('a repeated chat was a second one')
}

const readsSlowly: Story = (world) => streamed(world, world.agents.slow)

const cancels: Story = async (world) => {
  const agent = world.agents.slow
  const key = keyOf(world, agent)
  const reading = await stream(world, streamUrl(world, agent), key, 'POST', { message: message() })
  await firstOf(reading, 'delta')
  await expect(world, 204, runUrl(world, agent, reading.headers.get('x-public-run-id') ?? ''), key, 'DELETE')
  // On a machine that stalls, the whole answer may arrive before the cancel.
  await readTo(reading, 'error', 'done')
}

const leaves: Story = async (world) => {
  const agent = world.agents.slow
  const reading = await stream(world, streamUrl(world, agent), keyOf(world, agent), 'POST', { message: message() })
  await firstOf(reading, 'delta')
  reading.leave()
}

const comesBack: Story = async (world) => {
  const agent = world.agents.slow
  const key = keyOf(world, agent)
  const reading = await stream(world, streamUrl(world, agent), key, 'POST', { message: message() })
  const seq = await firstOf(reading, 'delta')
  reading.leave()
  const id = reading.headers.get('x-public-run-id') ?? ''
  await readTo(await stream(world, `${runUrl(world, agent, id)}/stream`, key, 'GET', undefined, seq), 'done')
  await expect(world, 200, runUrl(world, agent, id), key)
}

const start = async (
  world: World,
  agent: Agent,
  more: Readonly<Record<string, unknown>> = {},
): Promise<{ runId: string; sessionId: string }> => {
  const task = { profile: agent.profile, prompt: message(), ...more }
  const { body } = await expect(world, 202, `${world.conductor()}/api/runs`, world.apiKey, 'POST', task)
  return { runId: String(body['runId']), sessionId: String(body['sessionId']) }
}
const follow = (world: World, runId: string) =>
  stream(world, `${world.conductor()}/api/runs/${runId}/stream`, world.apiKey)

const runs: Story = async (world) => {
  const { runId } = await start(world, world.agents.tick)
  await readTo(await follow(world, runId), 'result')
  await expect(world, 200, `${world.conductor()}/api/runs/${runId}`, world.apiKey)
}

const runsTwiceBySameKey: Story = async (world) => {
  const url = `${world.conductor()}/api/runs`
  const task = { profile: world.agents.burst.profile, prompt: message() }
  const once = randomUUID()
  const first = await expect(world, 202, url, world.apiKey, 'POST', task, once)
  const again = await expect(world, 202, url, world.apiKey, 'POST', task, once)
  if (first.body['runId'] !== again.body['runId']) throw new Error('a repeated run was a second one')
}

const cancelsRun: Story = async (world) => {
  const { runId } = await start(world, world.agents.slow)
  const reading = await follow(world, runId)
  await firstOf(reading, 'assistant')
  await expect(world, 204, `${world.conductor()}/api/runs/${runId}`, world.apiKey, 'DELETE')
  await readTo(reading, 'error', 'result')
}

const isTold: Story = async (world) => {
  const runId = `soak-${randomUUID()}`
  const told = world.receiver.told(runId)
  await Promise.all([told, start(world, world.agents.burst, { id: runId, webhook: { url: world.receiver.url } })])
}

/** Two runs in one session, watched by somebody who stays until it is shut down. */
const session: Story = async (world) => {
  const { runId, sessionId } = await start(world, world.agents.tick)
  const url = `${world.conductor()}/api/sessions/${sessionId}`
  const watching = await stream(world, `${url}/stream`, world.apiKey)
  await firstOf(watching, 'result')
  await readTo(await follow(world, runId), 'result')
  await start(world, world.agents.tick, { sessionId, whenBusy: 'enqueue' })
  await firstOf(watching, 'result')
  await shutDown(world, url)
  for await (const event of watching.events) void event
}

/** Shuts the session down, again for a moment while it is busy: the end of a run is told before its session is free. */
async function shutDown(world: World, url: string): Promise<void> {
  for (;;) {
    const { body } = await expect(world, 200, url, world.apiKey)
    if (body['status'] !== 'running') break
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  await expect(world, 204, url, world.apiKey, 'DELETE')
}

const lists: Story = async (world) => {
  const paths = [
    '/api/runs?limit=20',
    '/api/runs?status=ok&limit=5&offset=20',
    `/api/profiles/${world.agents.burst.profile}/runs?limit=10`,
    '/api/sessions?limit=20',
    '/api/profiles',
    '/api/published',
    '/api/webhooks/deliveries?limit=10',
    '/api/stats/overview?window=1h',
    '/api/stats/agents?window=1h',
  ]
  await expect(world, 200, `${world.conductor()}${world.random.pick(paths)}`, world.apiKey)
  const known = world.conversations.at(-1)
  if (known) await expect(world, 200, `${world.gateway()}${known.agent.path}/conversations/${known.id}`, known.key)
}

const many = (times: number, story: Story): Story[] => Array.from({ length: times }, () => story)

/** The mix of stories: each is in the deck as often as it is told, so that the mix is the same in every few seconds. */
export const deck: readonly Story[] = [
  ...many(4, begins),
  ...many(4, goesOn),
  ...many(2, waits),
  repeats,
  ...many(2, readsSlowly),
  cancels,
  ...many(2, leaves),
  comesBack,
  ...many(2, runs),
  runsTwiceBySameKey,
  cancelsRun,
  isTold,
  session,
  ...many(2, lists),
]
