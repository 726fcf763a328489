import { type Static, Type } from '@sinclair/typebox'
import { Settings } from '#kernel'

export const RuntimeAConfig = Settings({
  apiKey: Type.Optional(
    Type.String({ description: 'Sent as x-api-key. In a sandbox worker the runner has it, here nobody.' }),
  ),
  baseUrl: Type.Optional(
    Type.String({
      pattern: '^(https?://.+)?$',
      expects: 'an http or https URL',
      description: 'With or without its final /v1; https://api.anthropic.com when only the key is set.',
    }),
  ),
  maxProcesses: Type.Integer({
    default: 32,
    minimum: 1,
    description: 'Runs at once: each is a process of about 100 MB, beside 50 MB that all of them share.',
  }),
})
export type RuntimeAConfig = Static<typeof RuntimeAConfig>
