import { ask } from './client.ts'
import type { Agent } from './stories.ts'

/** Publishes an agent without and one with a tool, and one whose tool waits for people. */
export async function publishAgents(
  conductorUrl: string,
  apiKey: string,
): Promise<{ plain: Agent; tooled: Agent; asking: Agent }> {
  const post = async (path: string, body: unknown): Promise<Record<string, unknown>> => {
    const answer = await ask(`${conductorUrl}${path}`, apiKey, 'POST', body, 10_000)
    if (answer.status !== 201) throw new Error(`POST ${path}: ${answer.status} ${JSON.stringify(answer.body)}`)
    return answer.body
  }
  const agent = async (profile: string, tools: readonly string[], more: object = {}): Promise<Agent> => {
    const instructions = 'Say what you are asked to.'
    await post('/api/profiles', { name: profile, model: 'openai/stand-in', instructions, tools, ...more })
    const published = await post(`/api/profiles/${profile}/publish`, { rateLimitRpm: 100_000 })
    const key = await post(`/api/profiles/${profile}/keys`, { label: 'chaos' })
    return { profile, slug: String(published['slug']), key: String(key['token']) }
  }
  return {
    plain: await agent('plain', []),
    tooled: await agent('tooled', ['calculate']),
    asking: await agent('asking', ['pay'], { requireApproval: ['pay'] }),
  }
}
