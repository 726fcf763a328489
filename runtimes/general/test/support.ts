import type { TestContext } from 'node:test'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { fake, runtimeOf, startModelServer, type ModelServer, type ModelServerOptions } from '#testing'
import { createModelConnections } from '#kit/models'
import { type ModelProvider, Models } from '#contracts/model'
import type { RunEvent } from '#contracts/run-event'
import type { Runtime } from '#contracts/runtime'
import type { GeneralConfig } from '../config.ts'
import general from '../index.ts'

type Test = Pick<TestContext, 'after'>

/** A provider `stand-in` on the stand-in model server, through the provider package and connections of production. */
export function standIn(t: Test, url: string): ModelProvider {
  const { fetch, close } = createModelConnections()
  t.after(close)
  const provider = createOpenAICompatible({
    name: 'stand-in',
    baseURL: url,
    includeUsage: true,
    supportsStructuredOutputs: true,
    fetch,
  })
  return { contract: 'model/1', model: (modelId) => provider.chatModel(modelId) }
}

/** The same server as the vendor that signs reasoning and takes images with results. */
export function signing(t: Test, url: string): ModelProvider {
  const { fetch, close } = createModelConnections()
  t.after(close)
  const provider = createAnthropic({ baseURL: url, apiKey: 'none', fetch })
  return { contract: 'model/1', model: (modelId) => provider(modelId) }
}

// With a toolkit, so that an envelope's `sessionMcpUrl` counts.
export const model = { profile: { model: 'stand-in/m', tools: ['any'] } }
export const signed = { profile: { model: 'signing/m', tools: ['any'] } }

export async function generalWith(
  t: Test,
  models: Record<string, ModelProvider>,
  config: Partial<GeneralConfig> = {},
): Promise<Runtime> {
  const entry = { name: 'runtime-general', plugin: general, config }
  return runtimeOf(t, 'general', [entry, fake(Models, models)])
}

export async function generalOnStandIn(
  t: Test,
  options: ModelServerOptions = {},
  config: Partial<GeneralConfig> = {},
): Promise<{ runtime: Runtime; server: ModelServer }> {
  const server = await startModelServer(t, options)
  const models = { 'stand-in': standIn(t, server.url), signing: signing(t, server.url) }
  return { server, runtime: await generalWith(t, models, config) }
}

/** What the model server was last sent, as `role: text` lines: easy to compare. */
export function conversation(server: ModelServer): string[] {
  return server.requests.at(-1)!.body.messages.map(({ role, content, tool_calls: calls }) => {
    const called = Array.isArray(calls)
      ? calls.map((c) => `${c.id}=${c.function.name}(${c.function.arguments})`).join(' ')
      : ''
    return `${role}: ${[content ?? '', called].filter((part) => part !== '').join(' ')}`
  })
}

/** The events of one stage. */
export const stages = (events: readonly RunEvent[], stage: string) =>
  events.filter((event) => event.type === 'progress').filter((event) => event.stage === stage)

/** A picture of one pixel. */
export const pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='
