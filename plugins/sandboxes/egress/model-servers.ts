import { type StaticDecode, Type } from '@sinclair/typebox'
import { everyTenant, Settings, type TenantList, Tenants } from '#kernel'
import { anthropicUsage, openaiUsage, type UsageOf } from './usage.ts'

const baseUrl = (description: string) =>
  Type.Optional(Type.String({ pattern: '^https?://[^\\s]+$', expects: 'an http or https URL', description }))
const tenants = Type.Optional(Tenants('The tenants whose workers may call it; all by default.'))
const apiKey = Type.Optional(Type.String({ description: 'Stays in the runner.' }))

/** The model servers that workers reach through the runner, with the same settings as the model providers of a sidecar. */
export const ModelServers = Settings({
  openai: Type.Optional(
    Settings({
      apiKey,
      tenants,
      baseUrl: baseUrl('Ends before /chat/completions; https://api.openai.com/v1 when only the key is set.'),
    }),
  ),
  anthropic: Type.Optional(
    Settings({
      apiKey,
      tenants,
      baseUrl: baseUrl('With or without its final /v1; https://api.anthropic.com when only the key is set.'),
    }),
  ),
})

export interface ModelServer {
  readonly base: URL
  /** The tenants whose workers may call it. */
  readonly tenants: TenantList
  readonly headers: Readonly<Record<string, string>>
  /** The calls that workers may make: method and path below the base URL. */
  readonly calls: RegExp
  /** The calls that only count tokens and cost nothing. */
  readonly free: RegExp
  readonly usageOf: UsageOf
}

// The rest of an API is closed: all tenants of this installation would share its files, batches and stored answers.
const openaiCalls =
  /^(POST (chat\/completions|completions|responses(\/compact|\/input_tokens)?|embeddings)|GET models(\/.+)?)$/
const openaiFree = /^POST responses\/input_tokens$/
const anthropicCalls = /^(POST messages(\/count_tokens)?|GET models(\/.+)?)$/
const anthropicFree = /^POST messages\/count_tokens$/

/** Servers by the name of their provider. One with neither key nor URL is left out. */
export function modelServers({
  openai = {},
  anthropic = {},
}: StaticDecode<typeof ModelServers>): ReadonlyMap<string, ModelServer> {
  const found = new Map<string, ModelServer>()
  if (openai.apiKey || openai.baseUrl) {
    found.set('openai', {
      base: new URL(openai.baseUrl ?? 'https://api.openai.com/v1'),
      headers: openai.apiKey ? { authorization: `Bearer ${openai.apiKey}` } : {},
      tenants: openai.tenants ?? everyTenant,
      calls: openaiCalls,
      free: openaiFree,
      usageOf: openaiUsage,
    })
  }
  if (anthropic.apiKey || anthropic.baseUrl) {
    found.set('anthropic', {
      base: versioned(new URL(anthropic.baseUrl ?? 'https://api.anthropic.com')),
      headers: anthropic.apiKey ? { 'x-api-key': anthropic.apiKey } : {},
      tenants: anthropic.tenants ?? everyTenant,
      calls: anthropicCalls,
      free: anthropicFree,
      usageOf: anthropicUsage,
    })
  }
  return found
}

/** The base URL with /v1. The model provider reads the same variable in the same way. */
function versioned(url: URL): URL {
  const path = url.pathname.replace(/\/+$/, '')
  return new URL(path.endsWith('/v1') ? path : `${path}/v1`, url)
}
