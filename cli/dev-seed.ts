import type { DevAgent, ReadyLine } from './dev-data.ts'
import { CliError } from './terminal.ts'

export const devTenant = 'default'

interface SeedAgent {
  readonly profile: string
  readonly instructions: string
  readonly tools: readonly string[]
}

/** The agents use the built-in model, so that they answer the same with and without a key for a real one. */
const agents: readonly SeedAgent[] = [
  { profile: 'hello', instructions: 'Greet, and answer briefly.', tools: [] },
  {
    profile: 'support',
    instructions: 'Answer questions about Agent Orc from its documentation, and calculate when asked to.',
    tools: ['calculate', 'current_time', 'search_docs'],
  },
]

export interface SeedOptions {
  readonly conductorUrl: string
  readonly gatewayUrl: string
  readonly bootstrapKey: string
  /** What the last start on this data directory handed out. It is handed out again while it works. */
  readonly last: ReadyLine | undefined
}

/** Brings a development server to two published agents and a key for each, through the same API anybody uses. */
export async function seed(options: SeedOptions): Promise<Pick<ReadyLine, 'tenant' | 'apiKey' | 'agents'>> {
  const { conductorUrl, gatewayUrl, bootstrapKey, last } = options
  const kept = last && (await works(`${conductorUrl}/api/profiles?limit=1`, last.apiKey)) ? last.apiKey : undefined
  const apiKey = kept ?? (await mintApiKey(conductorUrl, bootstrapKey))
  const api = client(conductorUrl, apiKey)
  const seeded = await Promise.all(
    agents.map(async (agent): Promise<DevAgent> => {
      const slug = await publish(api, agent)
      const chatUrl = `${gatewayUrl}/v1/chat/${devTenant}/${slug}`
      const before = last?.agents.find((a) => a.profile === agent.profile)?.key
      // An unknown conversation is 404 to a good key and 401 to any other.
      const good = before !== undefined && (await works(`${chatUrl}/conversations/conv_none`, before))
      const key = good ? before : await mintAgentKey(api, agent.profile)
      return { profile: agent.profile, slug, chatUrl, key }
    }),
  )
  return { tenant: devTenant, apiKey, agents: seeded }
}

async function publish(api: Client, { profile, instructions, tools }: SeedAgent): Promise<string> {
  const path = `/api/profiles/${profile}`
  if ((await api('GET', path)).status === 404) {
    const body = { name: profile, model: 'builtin/demo', instructions, tools }
    expectOk(await api('POST', '/api/profiles', body), `create the profile ${profile}`)
  }
  const published = await api('GET', `${path}/published`)
  const agent =
    published.status === 404
      ? expectOk(
          await api('POST', `${path}/publish`, { slug: profile, exposeToolEvents: true }),
          `publish the profile ${profile}`,
        )
      : expectOk(published, `read how ${profile} is published`)
  return String(agent['slug'])
}

const mintApiKey = async (url: string, bootstrapKey: string): Promise<string> => {
  const reply = await client(url, bootstrapKey)('POST', '/api/api-keys', { label: 'development', role: 'owner' })
  return String(expectOk(reply, 'mint an API key')['token'])
}

const mintAgentKey = async (api: Client, profile: string): Promise<string> => {
  const reply = await api('POST', `/api/profiles/${profile}/keys`, { label: 'development' })
  return String(expectOk(reply, `mint a key for ${profile}`)['token'])
}

const works = async (url: string, key: string): Promise<boolean> => {
  const reply = await fetch(url, { headers: { authorization: `Bearer ${key}` } })
  await reply.body?.cancel()
  return reply.ok || reply.status === 404
}

interface Reply {
  readonly status: number
  readonly body: Readonly<Record<string, unknown>>
}
type Client = (method: string, path: string, body?: unknown) => Promise<Reply>

const client =
  (url: string, key: string): Client =>
  async (method, path, body) => {
    const reply = await fetch(url + path, {
      method,
      headers: {
        authorization: `Bearer ${key}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    return { status: reply.status, body: (await reply.json()) as Reply['body'] }
  }

function expectOk({ status, body }: Reply, what: string): Reply['body'] {
  if (status < 300) return body
  const why = body['message'] ?? body['error']
  throw new CliError(`could not ${what}: the conductor answers ${status} ${String(why)}`)
}
