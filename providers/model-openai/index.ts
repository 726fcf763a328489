import { Type } from '@sinclair/typebox'
import { Settings } from '#kernel'
import { defineModelProvider } from '#kit/models'

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
  async create({ apiKey, baseUrl }, { fetch, post, egress }) {
    if (!apiKey && !baseUrl && !egress) return undefined
    // The package is loaded only in roles that offer the provider.
    const { createChatModels } = await import('./chat.ts')
    const model = createChatModels({
      baseUrl: egress?.baseUrl ?? (baseUrl || 'https://api.openai.com/v1'),
      headers: apiKey ? { authorization: `Bearer ${apiKey}` } : {},
      fetch: egress?.fetch ?? fetch,
      post,
    })
    return { contract: 'model/1', model }
  },
})
