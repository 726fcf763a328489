import { defineRuntime } from '#contracts/runtime'
import { GeneralConfig } from './config.ts'
import { generalRuntime } from './runtime.ts'

/** The runtime `general`: our own step loop over any model provider, with tools of the session and of MCP servers, and a bounded history. */
export default defineRuntime({ name: 'general', config: GeneralConfig, create: generalRuntime })
