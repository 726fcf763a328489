import { Type } from '@sinclair/typebox'
import { Settings } from '#kernel'
import { defineRuntime } from '#contracts/runtime'
import { runtimeA } from './runtime.ts'

/** The runtime `runtime_a`: the Claude Agent SDK, a process of its vendor for each run, with the session's tools and no others. */
export default defineRuntime({
  name: 'runtime_a',
  config: Settings({
    apiKey: Type.Optional(Type.String({ description: 'For models "anthropic/<name>". Not used in a sandbox worker.' })),
    baseUrl: Type.Optional(
      Type.String({
        pattern: '^(https?://.+)?$',
        expects: 'an http or https URL',
        description: 'With or without its final /v1; https://api.anthropic.com when only the key is set.',
      }),
    ),
  }),
  create: runtimeA,
})
