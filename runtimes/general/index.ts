import { defineRuntime } from '#contracts/runtime'
import { generalRuntime } from './runtime.ts'

/** The runtime `general`: our own step loop over any model provider, with the session's tools and a bounded history. */
export default defineRuntime({ name: 'general', create: generalRuntime })
