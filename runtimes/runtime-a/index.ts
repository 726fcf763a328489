import { createOutputSchemas } from '#contracts/output-schema'
import { defineRuntime, type Runtime, type RuntimeContext } from '#contracts/runtime'
import { RuntimeAConfig } from './config.ts'
import { createConversations } from './conversations.ts'
import { runtimeBusy } from './errors.ts'
import { modelServer } from './options.ts'
import { createRoot } from './root.ts'
import { runTurn } from './run.ts'
import { vendorPackage } from './vendor.ts'

/** The runtime `runtime_a`: the Claude Agent SDK, a process of its vendor for each run, with the session's tools and no others. */
export default defineRuntime({ name: 'runtime_a', config: RuntimeAConfig, create: runtimeA })

type Context = Pick<RuntimeContext<RuntimeAConfig>, 'config' | 'egress' | 'log' | 'onStop'>

async function runtimeA({ config, egress, log, onStop }: Context): Promise<Runtime> {
  const vendor = vendorPackage()
  if (vendor.missing !== undefined) log.info(vendor.missing)
  const root = createRoot()
  onStop(root.remove)
  const conversations = createConversations(root)
  const deps = {
    vendor,
    conversations,
    root,
    schemas: createOutputSchemas(),
    log,
    server: () => modelServer(config, egress),
  }
  let running = 0
  return {
    contract: 'runtime/1',
    get missing() {
      return vendor.missing
    },
    async *run(envelope, signal) {
      if (running >= config.maxProcesses) throw runtimeBusy({ retryable: true })
      running++
      try {
        yield* runTurn(envelope, signal, deps)
      } finally {
        running--
      }
    },
    exportState: conversations.exportState,
    hydrate: conversations.hydrate,
    has: conversations.has,
    forget: conversations.forget,
  }
}
