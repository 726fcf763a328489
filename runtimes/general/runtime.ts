import { createModelConnections } from '#contracts/model-fetch'
import { createOutputSchemas } from '#contracts/output-schema'
import type { Runtime, RuntimeContext } from '#contracts/runtime'
import { decodeBundle, encodeBundle } from './bundle.ts'
import { createSettings, type GeneralConfig } from './config.ts'
import { createHistory } from './history.ts'
import { createCatalog } from './models.ts'
import { createOutputForm } from './output.ts'
import { runSteps } from './steps.ts'
import { connectTools } from './tools/connect.ts'
import { createSilence } from './tools/silence.ts'

export async function generalRuntime(
  ctx: Pick<RuntimeContext<GeneralConfig>, 'config' | 'models' | 'log' | 'onStop'>,
): Promise<Runtime> {
  const { maxToolSchemas, reasoningEvents } = ctx.config
  const history = createHistory()
  const catalog = createCatalog(ctx.models)
  const connections = createModelConnections()
  const schemas = createOutputSchemas()
  const settingsOf = createSettings(ctx.config)
  const silence = createSilence()
  ctx.onStop(connections.close)
  return {
    contract: 'runtime/1',
    replays: true,
    run: (envelope, signal) =>
      runSteps(envelope, signal, {
        history,
        log: ctx.log,
        settingsOf,
        reasoningEvents,
        modelOf: catalog.find,
        formOf: (format) => createOutputForm(format, schemas),
        connect: (run) => connectTools(connections.fetch, run, maxToolSchemas, silence, signal),
      }),
    async exportState(sessionId) {
      const turns = history.turns(sessionId)
      return turns && { bytes: encodeBundle(turns), contentType: 'application/json', runtimeSessionId: sessionId }
    },
    async hydrate(sessionId, bundle) {
      history.replace(sessionId, decodeBundle(bundle.bytes))
    },
    has: (sessionId) => history.turns(sessionId) !== undefined,
    async forget(sessionId) {
      history.forget(sessionId)
    },
  }
}
