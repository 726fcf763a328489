import { defineRuntime } from '#contracts/runtime'
import { RuntimeAConfig } from './config.ts'
import { runtimeA } from './runtime.ts'

/** The runtime `runtime_a`: the Claude Agent SDK, a process of its vendor for each run, with the session's tools and no others. */
export default defineRuntime({ name: 'runtime_a', config: RuntimeAConfig, create: runtimeA })
