import { createModelConnections } from '#contracts/model-fetch'
import type { Runtime, RuntimeContext } from '#contracts/runtime'
import { decodeBundle, encodeBundle } from './bundle.ts'
import { createHistory } from './history.ts'
import { createCatalog } from './models.ts'
import { runSteps } from './steps.ts'
import { connectTools } from './tools.ts'

export async function generalRuntime(
  ctx: Pick<RuntimeContext<unknown>, 'models' | 'log' | 'onStop'>,
): Promise<Runtime> {
  const history = createHistory()
  const catalog = createCatalog(ctx.models)
  const connections = createModelConnections()
  ctx.onStop(connections.close)
  return {
    contract: 'runtime/1',
    replays: true,
    run: (envelope, signal) =>
      runSteps(envelope, signal, {
        history,
        log: ctx.log,
        modelOf: catalog.find,
        connect: (url, token) => connectTools(connections.fetch, url, token, signal),
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
