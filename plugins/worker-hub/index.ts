import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, Settings } from '#kernel'
import { SandboxProviders } from '#contracts/sandbox'
import { maxEventUploadBytes, maxEventUploadMs } from '#contracts/wire/worker'
import { WorkerHub, WorkerTokens } from '#contracts/workers'
import { createDoor } from './door.ts'
import { createEgress } from './egress/egress.ts'
import { ModelServers, modelServers } from './egress/servers.ts'
import { eventRoutes } from './events.routes.ts'
import { createHub } from './hub.ts'
import { createNewestOfAll } from './newest.ts'
import { pollRoutes } from './poll.routes.ts'
import { stateRoutes } from './state.routes.ts'
import { toolRoutes } from './tool.routes.ts'

/** The runner's end of workers that poll: their commands, events, state and tool results, and their way out. Specification 4.22. */
export default definePlugin({
  name: 'worker-hub',
  config: Settings({
    lostAfter: Duration('15s', 'A worker with a run is lost when it has not polled, and sent nothing, for this long.'),
    models: Type.Optional(ModelServers),
  }),
  requires: { tokens: WorkerTokens, providers: SandboxProviders },
  provides: { hub: WorkerHub },
  async setup({ config, deps, routes, onStop }) {
    const hub = createHub(deps.tokens, config.lostAfter)
    onStop(async () => hub.close())
    const door = createDoor(hub, deps.providers.size > 0)
    const egress = createEgress(door, modelServers(config.models ?? {}))
    onStop(egress.close)
    const newest = createNewestOfAll()
    const limits = { maxBytes: maxEventUploadBytes, maxMs: maxEventUploadMs }
    // Workers reach the second alone: there is nothing else of the runner on it but the MCP endpoints of their sessions.
    for (const listener of ['runner', 'workers']) {
      routes(listener, async (app) => {
        const closing = new AbortController()
        app.addHook('preClose', async () => closing.abort())
        // A command may hold whatever an envelope holds: it is sent as it is.
        app.setSerializerCompiler(() => (data) => JSON.stringify(data))
        door.protect(app)
        pollRoutes(app, door, newest, closing.signal)
        toolRoutes(app, door)
        await app.register(eventRoutes(door, limits, closing.signal))
        await app.register(stateRoutes(door, newest))
      })
      routes(listener, egress.routes)
    }
    return { hub }
  },
})
