import { Type } from '@sinclair/typebox'
import { access, type App, eventStream, linesOf, notFound, sse, sseFrame } from '#kernel'
import type { Guard } from '#contracts/auth'
import { isClientId } from '#contracts/ids'
import { peekType } from '#contracts/run-event'
import { readCursor, writeCursor } from './cursor.ts'
import { type FollowDeps, followSession, type SessionChunk } from './follow.ts'

/** Behind every run: the largest ordinal that PostgreSQL's integer holds. */
const lastOrdinal = 2_147_483_647

const Params = Type.Object({ id: Type.String({ description: 'Id of the session.' }) })

export function sessionStreamRoutes(app: App, guard: Guard, deps: FollowDeps): void {
  app.get(
    '/api/sessions/:id/stream',
    {
      ...access('member'),
      schema: {
        tags: ['sessions'],
        summary: 'Follow a session across its runs',
        description:
          'The events of all runs of the session in order, then those to come. `Last-Event-ID` resumes exactly behind the event of that `id`. Ends when the session is shut down.',
        params: Params,
        response: {
          200: eventStream('`event` is the type of a RunEvent, `data` the RunEvent, `id` one cursor across all runs.'),
        },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { id } = request.params
      const known = isClientId(id) && (await deps.store.runsOfSession(tenantId, id, lastOrdinal))
      if (!known) throw notFound()
      const cursor = readCursor(request.headers['last-event-id'])
      await sse(request, reply, (signal) => frames(followSession(deps, tenantId, id, cursor, signal)))
      return reply
    },
  )
}

// The vendor's conversation handle is for the raw log only. Specification 2.8.
async function* frames(chunks: AsyncIterable<SessionChunk>): AsyncGenerator<string> {
  for await (const { ordinal, chunk } of chunks) {
    let out = ''
    let seq = chunk.firstSeq
    for (const line of linesOf(chunk.lines)) {
      const type = peekType(line)
      if (type !== undefined && type !== 'session_init') {
        out += sseFrame(type, line.toString('utf8'), writeCursor(ordinal, seq))
      }
      seq++
    }
    if (out !== '') yield out
  }
}
