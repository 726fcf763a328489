import { Type } from '@sinclair/typebox'
import { Settings } from '#kernel'
import { defineModelProvider } from '#kit/models'

/** Models behind the Anthropic messages API, or a compatible server by `baseUrl`. */
export default defineModelProvider({
  name: 'anthropic',
  config: Settings({
    apiKey: Type.Optional(Type.String({ description: 'Sent as x-api-key.' })),
    baseUrl: Type.Optional(
      Type.String({
        pattern: '^(https?://.+)?$',
        expects: 'an http or https URL',
        description: 'With or without its final /v1; https://api.anthropic.com when only the key is set.',
      }),
    ),
  }),
  async create({ apiKey, baseUrl }, { fetch, egress }) {
    if (!apiKey && !baseUrl && !egress) return undefined
    // The package is loaded only in roles that offer the provider.
    const { createAnthropic } = await import('@ai-sdk/anthropic')
    const provider = createAnthropic({
      baseURL: egress?.baseUrl ?? versioned(baseUrl || 'https://api.anthropic.com'),
      // Without a key the package would read the environment, which only role files may use.
      apiKey: apiKey || 'none',
      fetch: egress?.fetch ?? fetch,
    })
    return { contract: 'model/1', model: (modelId) => provider(modelId) }
  },
})

// The vendor's own clients expect the address without /v1, this package expects it with /v1. Accepting both lets one variable serve both.
const versioned = (url: string): string => {
  const base = url.replace(/\/+$/, '')
  return base.endsWith('/v1') ? base : `${base}/v1`
}
