import { defineRuntime } from '#contracts/runtime'
import { RuntimeBConfig } from './config.ts'
import { runtimeB } from './runtime.ts'

/** The runtime `runtime_b`: Codex, one `codex app-server` process for each run, without any tool of this machine. */
export default defineRuntime({ name: 'runtime_b', config: RuntimeBConfig, create: (ctx) => runtimeB(ctx) })
