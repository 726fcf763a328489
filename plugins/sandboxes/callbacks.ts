import type { PluginContext } from '#kernel'
import { maxEventUploadBytes, maxEventUploadMs } from '#contracts/wire/worker'
import type { ModelServer } from './egress/model-servers.ts'
import { createEgress } from './egress/routes.ts'
import { createNewestOfAll, createWorkerAuth } from './hub/auth.ts'
import type { Hub } from './hub/hub.ts'
import { eventRoutes, pollRoutes, stateRoutes, toolRoutes } from './hub/routes.ts'

export interface CallbackOptions {
  readonly hub: Hub
  /** This runner starts sandbox workers. */
  readonly served: boolean
  /** The model servers that workers reach through this runner, by the name of the provider. */
  readonly models: ReadonlyMap<string, ModelServer>
}

/** Mounts the routes that workers call: for commands, events, state, tool results and egress. Specification 4.22. */
export function mountCallbacks(
  { routes, onStop }: Pick<PluginContext, 'routes' | 'onStop'>,
  { hub, served, models }: CallbackOptions,
): void {
  const auth = createWorkerAuth(hub, served)
  const egress = createEgress(auth, models)
  onStop(egress.close)
  const newest = createNewestOfAll()
  const limits = { maxBytes: maxEventUploadBytes, maxMs: maxEventUploadMs }
  // Workers reach only the second listener: it has these routes and the MCP endpoints of their sessions, nothing else of the runner.
  for (const listener of ['runner', 'workers']) {
    routes(listener, async (app) => {
      const closing = new AbortController()
      app.addHook('preClose', async () => closing.abort())
      // A command may hold whatever an envelope holds: it is sent as it is.
      app.setSerializerCompiler(() => (data) => JSON.stringify(data))
      auth.protect(app)
      pollRoutes(app, auth, newest, closing.signal)
      toolRoutes(app, auth)
      await app.register(eventRoutes(auth, limits, closing.signal))
      await app.register(stateRoutes(auth, newest))
    })
    routes(listener, egress.routes)
  }
}
