/** A published agent, and keys of it to spread load over. */
export interface Agent {
  readonly profile: string
  /** Below the gateway's address. */
  readonly path: string
  readonly keys: readonly string[]
}

/** The highest limit an agent can have, in requests per minute and key: the limiter stays on and must not interfere. */
const rateLimitRpm = 100_000
/** With their limits so many keys allow 26,000 chats a second. */
const keysPerAgent = 16

async function create(
  conductorUrl: string,
  apiKey: string,
  path: string,
  body: unknown,
): Promise<Record<string, string>> {
  const response = await fetch(`${conductorUrl}${path}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  if (response.status !== 201) throw new Error(`POST ${path}: ${response.status} ${await response.text()}`)
  return (await response.json()) as Record<string, string>
}

/** Publishes an agent of the key's tenant, without tools, on a model of the stand-in. */
export async function publishAgent(
  conductorUrl: string,
  apiKey: string,
  model: string,
  tenant = 'default',
): Promise<Agent> {
  const post = (path: string, body: unknown) => create(conductorUrl, apiKey, path, body)
  const profile = `bench-${model}`
  await post('/api/profiles', { name: profile, model: `openai/${model}` })
  const { slug } = await post(`/api/profiles/${profile}/publish`, { rateLimitRpm })
  const keys: string[] = []
  for (let i = 0; i < keysPerAgent; i++) {
    const { token } = await post(`/api/profiles/${profile}/keys`, { label: `bench ${i}` })
    keys.push(String(token))
  }
  return { profile, path: `/v1/chat/${tenant}/${slug}`, keys }
}

/** A key as an SDK has one: unlike the one of the environment it is looked up in the database with every request. */
export async function issueKey(conductorUrl: string, ownerKey: string, role: 'member' | 'admin'): Promise<string> {
  const { token } = await create(conductorUrl, ownerKey, '/api/api-keys', { label: 'bench', role })
  return String(token)
}
