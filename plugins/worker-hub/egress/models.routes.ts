import { Type } from '@sinclair/typebox'
import type { Dispatcher } from 'undici'
import { access, type App, failure } from '#kernel'
import { type Door, whileCalled } from '../door.ts'
import {
  modelKeyRefused,
  modelServerUnreachable,
  noRunUnderWay,
  unknownModelCall,
  unknownModelProvider,
} from '../errors.ts'
import { refusals } from '../schema.ts'
import { forward } from './forward.ts'
import { modelRequest, pick } from './headers.ts'
import { pathBelow } from './path.ts'
import type { ModelServer } from './servers.ts'

const Params = Type.Object({
  id: Type.String({ maxLength: 128 }),
  provider: Type.String({ maxLength: 64 }),
  '*': Type.String(),
})
/** `/runner/worker/{id}/models/{provider}`. */
const before = 5

/** Model calls of workers: a sandbox has neither keys nor a network. */
export function modelRoutes(
  app: App,
  door: Door,
  dispatcher: Dispatcher,
  servers: ReadonlyMap<string, ModelServer>,
): void {
  const schema = {
    tags: ['workers'],
    summary: 'Call a model server',
    description:
      "Stands for the provider's API root. The runner adds the key; the worker's own token may come as `x-api-key`, too.",
    params: Params,
    response: {
      200: { description: 'As the model server answers, streamed.', content: { '*/*': { schema: Type.Unknown() } } },
      ...refusals,
      404: failure('`unknown_model_provider`: this runner has none of this name; or `unknown_model_call`.'),
      409: failure('`no_run_under_way`: models can be listed at any time, and called in a run.'),
      413: failure('`body_too_large`: more than 32 MiB.'),
      502: failure('`model_server_unreachable`, or `model_key_refused`.'),
    },
  }
  const options = { ...access('worker'), exposeHeadRoute: false, schema }
  for (const method of ['GET', 'POST'] as const) {
    app.route({
      method,
      url: '/runner/worker/:id/models/:provider/*',
      ...options,
      async handler(request, reply) {
        const { worker } = door.of(request)
        const server = servers.get(request.params.provider)
        if (!server) throw unknownModelProvider()
        const below = pathBelow(request.raw.url ?? '', before)
        // The tools of one vendor take the address without /v1, and add it themselves.
        const call = below?.path.replace(/^v1\//, '')
        if (!below || !call || !server.calls.test(`${request.method} ${call}`)) throw unknownModelCall()
        if (method === 'POST' && !worker.busy) throw noRunUnderWay()
        const path = `${server.base.pathname.replace(/\/+$/, '')}/${call}${below.query}`
        return forward(request, reply, {
          dispatcher,
          origin: server.base.origin,
          path,
          headers: { ...pick(request.headers, modelRequest), ...server.headers },
          signal: whileCalled(reply, worker.closed),
          unreachable: modelServerUnreachable,
          refused: modelKeyRefused,
        })
      },
    })
  }
}
