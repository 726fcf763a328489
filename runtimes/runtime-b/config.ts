import { type Static, Type } from '@sinclair/typebox'
import { Settings } from '#kernel'

export const RuntimeBConfig = Settings({
  apiKey: Type.Optional(Type.String({ description: 'Sent as a bearer token. Many local servers need none.' })),
  baseUrl: Type.Optional(
    Type.String({
      pattern: '^(https?://.+)?$',
      expects: 'an http or https URL',
      description: 'Ends before /responses; https://api.openai.com/v1 when only the key is set.',
    }),
  ),
  contextTokens: Type.Integer({
    default: 128_000,
    minimum: 1_000,
    description: 'Tokens that prompt and answer of one call may have together. Codex summarizes what is older.',
  }),
  maxProcesses: Type.Integer({
    default: 64,
    minimum: 1,
    description:
      'Runs at once, of one tenant at most half of them: each is a process of about 20 MB, beside 120 MB that all of them share.',
  }),
})
export type RuntimeBConfig = Static<typeof RuntimeBConfig>
