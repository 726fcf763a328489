import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { Type } from '@sinclair/typebox'
import { Settings } from '#kernel'
import { defineModelProvider } from '#contracts/model'
import { withStrictness } from './strictness.ts'
import { createTextTap } from './text-tap.ts'

/** Models behind the OpenAI chat completions API: OpenAI itself, or any compatible server by `baseUrl`. */
export default defineModelProvider({
  name: 'openai',
  config: Settings({
    apiKey: Type.Optional(Type.String({ description: 'Sent as a bearer token. Many local servers need none.' })),
    baseUrl: Type.Optional(
      Type.String({
        pattern: '^(https?://.+)?$',
        expects: 'an http or https URL',
        description: 'Ends before /chat/completions; https://api.openai.com/v1 when only the key is set.',
      }),
    ),
  }),
  async create({ apiKey, baseUrl }, { fetch, egress }) {
    if (!apiKey && !baseUrl && !egress) return undefined
    const tap = createTextTap(egress?.fetch ?? fetch)
    const provider = createOpenAICompatible({
      name: 'openai',
      baseURL: egress?.baseUrl ?? (baseUrl || 'https://api.openai.com/v1'),
      includeUsage: true,
      supportsStructuredOutputs: true,
      fetch: tap.fetch,
      ...(apiKey ? { apiKey } : {}),
    })
    return { contract: 'model/1', model: (modelId) => withStrictness(tap.wrap(provider.chatModel(modelId))) }
  },
})
