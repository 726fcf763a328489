import { Type } from '@sinclair/typebox'
import { access, type App, failure, NoContent } from '#kernel'
import { type Door } from './door.ts'
import { unknownCall } from './errors.ts'
import { refusals, tags } from './schema.ts'

const Params = Type.Object({ id: Type.String({ maxLength: 128 }), callId: Type.String({ maxLength: 128 }) })
const Result = Type.Object({ ok: Type.Boolean(), content: Type.String() })

export function toolRoutes(app: App, door: Door): void {
  app.put(
    '/runner/worker/:id/tools/:callId',
    {
      ...access('worker'),
      schema: {
        tags,
        summary: 'Answer a tool call',
        params: Params,
        body: Result,
        response: { 204: NoContent, ...refusals, 404: failure('`unknown_call`: nobody waits for it any more.') },
      },
    },
    async (request, reply) => {
      const { worker } = door.of(request)
      if (!worker.takeToolResult(request.params.callId, request.body)) throw unknownCall()
      return reply.code(204).send()
    },
  )
}
