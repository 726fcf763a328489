import { Type } from '@sinclair/typebox'
import { access, type App, failure, NoContent } from '#kernel'
import { workerProtocolHeader } from '#contracts/wire/sidecar'
import { PollAnswer, pollMs, workerProtocol } from '#contracts/wire/worker'
import { type Door, whileCalled } from './door.ts'
import { unsupportedProtocol } from './errors.ts'
import type { NewestOfAll } from './newest.ts'
import { refusals, SessionParams, tags } from './schema.ts'

const Query = Type.Object({
  after: Type.Integer({ minimum: 0, default: 0, description: 'Every command up to this one has been taken.' }),
  tools: Type.Optional(Type.Literal('1', { description: 'The worker takes `tool` commands.' })),
  wait: Type.Integer({ minimum: 0, maximum: pollMs, default: pollMs, description: 'Milliseconds.' }),
})

/** `closing`: the listener is; polls are answered, so that it need not wait for them. */
export function pollRoutes(app: App, door: Door, { answers }: NewestOfAll, closing: AbortSignal): void {
  app.get(
    '/runner/worker/:id/poll',
    {
      ...access('worker'),
      exposeHeadRoute: false,
      schema: {
        tags,
        summary: 'Ask for commands',
        description:
          'Held open until there is one. A command comes again until a poll says `after` it; a newer poll ends an older one.',
        params: SessionParams,
        querystring: Query,
        headers: Type.Object({ [workerProtocolHeader]: Type.Optional(Type.String({ description: 'Required: 1.' })) }),
        response: {
          200: PollAnswer,
          204: NoContent,
          400: failure('`unsupported_worker_protocol`, or `invalid_request`.'),
          ...refusals,
          409: failure('`poll_superseded`: by a newer poll of this worker.'),
        },
      },
    },
    async (request, reply) => {
      if (request.headers[workerProtocolHeader] !== workerProtocol) throw unsupportedProtocol()
      const { worker, expiresAt } = door.of(request)
      const { after, tools, wait } = request.query
      const signal = whileCalled(reply, closing)
      const answer = await worker.poll({ after, tools: tools === '1', waitMs: wait, signal, expiresAt })
      if (answer.commands.length === 0 && answer.token === undefined) return reply.code(204).send()
      answers.begin(worker, reply)
      reply.raw.once('finish', () => worker.left(answer))
      return answer
    },
  )
}
