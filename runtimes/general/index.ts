import type { LinkedFiles } from '#kit/linked-files'
import { createOutputSchemas } from '#kit/schemas'
import { eventsOf } from '#contracts/run-event'
import { defineRuntime, type Runtime } from '#contracts/runtime'
import { decodeState, encodeBundle } from './bundle.ts'
import { GeneralConfig } from './config.ts'
import { createHistory } from './conversation.ts'
import { createCatalog } from './models.ts'
import { createOutputForm } from './output.ts'
import { createTurns } from './run.ts'
import type { ToolConnections } from './tools/connect.ts'
import { generalErrors } from './errors.ts'

/** The runtime `general`: our own step loop over any model provider, with tools of the session and of MCP servers, and a bounded history. */
export default defineRuntime({
  name: 'general',
  config: GeneralConfig,
  errors: generalErrors,
  async create({ config, models, log, loads, onStop }): Promise<Runtime> {
    const history = createHistory()
    const schemas = createOutputSchemas()
    type Connect = Parameters<typeof createTurns>[0]['connect']
    // The MCP client is half of the code, so it is loaded by the first run that has tools, or in advance.
    let connecting: Promise<Connect> | undefined
    let toolConnections: ToolConnections | undefined
    const loadTools = async (): Promise<Connect> => {
      const { connectTools, createSilence, createToolConnections } = await import('./tools/connect.ts')
      const silence = createSilence()
      const connections = (toolConnections = createToolConnections())
      return (run, signal) => connectTools(connections, run, config.maxToolSchemas, silence, signal)
    }
    const loaded = (): Promise<Connect> => (connecting ??= loadTools())
    loads(async () => {
      await loaded()
      await (await import('#kit/mcp')).rehearseMcp()
    })
    onStop(async () => toolConnections?.close())
    // Loaded on demand: only a restored conversation with large attachments needs it.
    let files: Promise<LinkedFiles> | undefined
    onStop(async () => (await files)?.close())
    const turns = createTurns({
      history,
      log,
      reasoningEvents: config.reasoningEvents,
      modelOf: createCatalog(models, config),
      formOf: (format, tenantId) => createOutputForm(format, tenantId, schemas),
      readLinked: async (run, link, signal) => {
        files ??= import('#kit/linked-files').then((kit) => new kit.LinkedFiles())
        return (await files).read(run, link, signal)
      },
      connect: async (run, signal) => (await loaded())(run, signal),
    })
    return {
      contract: 'runtime/1',
      replays: true,
      batches: turns,
      async *run(envelope, signal) {
        for await (const batch of turns(envelope, signal)) yield* eventsOf(batch)
      },
      async exportState(sessionId) {
        const turns = history.turns(sessionId)
        return turns && { bytes: encodeBundle(turns), contentType: 'application/json' }
      },
      async hydrate(sessionId, bundle) {
        history.replace(sessionId, decodeState(bundle))
      },
      has: history.has,
      async forget(sessionId) {
        history.forget(sessionId)
      },
    }
  },
})
