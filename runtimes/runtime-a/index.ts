import { type Static, Type } from '@sinclair/typebox'
import { Settings } from '#kernel'
import { createOutputSchemas } from '#kit/schemas'
import { defineRuntime, type Runtime, type RuntimeContext } from '#contracts/runtime'
import { archiveErrors } from '#kit/archive'
import { createConversations } from './conversations.ts'
import { modelServer } from './options.ts'
import { createRoot } from './root.ts'
import { runTurn } from './run.ts'
import { vendorPackage } from './vendor.ts'
import { runtimeAErrors } from './errors.ts'

const RuntimeAConfig = Settings({
  apiKey: Type.Optional(Type.String({ description: 'Sent as x-api-key. For sandbox workers only the runner has it.' })),
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
type RuntimeAConfig = Static<typeof RuntimeAConfig>

/** The runtime `runtime_a`: the Claude Agent SDK, with one vendor process per run and only the session's tools. */
export default defineRuntime({
  name: 'runtime_a',
  config: RuntimeAConfig,
  errors: [runtimeAErrors, archiveErrors],
  create: runtimeA,
})

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
      if (running >= config.maxProcesses) throw runtimeAErrors.runtimeBusy()
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
