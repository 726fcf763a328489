import { access, type App, failure, jsonLines, ndjson, NoContent } from '#kernel'
import { maxReplayBytes } from '#contracts/replay'
import { ExecuteRun, type RunnerService } from '#contracts/runner'
import { RunParams, TenantHeaders } from './schema.ts'
import { tenantOf } from './tenant.ts'

const tags = ['runs']

/** A prompt is at most 1,000,000 characters; its attachments and the profile that creates a session come along, and what was finished before. */
const maxRunBytes = 16 * 1024 * 1024 + maxReplayBytes

export function runRoutes(app: App, core: RunnerService): void {
  app.post(
    '/runner/runs',
    {
      ...access('network'),
      bodyLimit: maxRunBytes,
      schema: {
        tags,
        summary: 'Execute a run',
        description: 'Closing the connection ends the run. A stream without `result` or `error` at its end was cut.',
        headers: TenantHeaders,
        body: ExecuteRun,
        response: {
          200: jsonLines('RunEvents, one a line; the last one is `result` or `error`.'),
          404: failure('`unknown_session`: it is not in the memory of this runner; hydrate it.'),
          409: failure('`session_busy`, or `attempt_superseded`: a later attempt of this run was begun.'),
          503: failure('`runner_full` or `runner_draining`: nothing was begun; ask another runner.'),
        },
      },
    },
    async (request, reply) => {
      const abort = new AbortController()
      const chunks = core.execute(tenantOf(request), request.body, abort.signal)[Symbol.asyncIterator]()
      // The first line is the runner's own and comes at once; a refusal comes instead of it, while a status can still be sent.
      const first = await chunks.next()
      return ndjson(request, reply, (signal) => following(first, chunks, signal, abort))
    },
  )

  app.delete(
    '/runner/runs/:runId',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Cancel a run',
        description:
          'Its stream ends with an `error` event `cancelled`. An unknown run, or one that has ended, is no error.',
        headers: TenantHeaders,
        params: RunParams,
        response: { 204: NoContent },
      },
    },
    async (request, reply) => {
      core.cancelRun(tenantOf(request), request.params.runId)
      return reply.code(204).send()
    },
  )
}

async function* following(
  first: IteratorResult<Buffer>,
  chunks: AsyncIterator<Buffer>,
  signal: AbortSignal,
  abort: AbortController,
): AsyncGenerator<Buffer> {
  const end = (): void => abort.abort(signal.reason)
  if (signal.aborted) end()
  signal.addEventListener('abort', end, { once: true })
  try {
    for (let read = first; !read.done; read = await chunks.next()) yield read.value
  } finally {
    await chunks.return?.()
  }
}
