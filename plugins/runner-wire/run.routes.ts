import { access, type App, ndjson } from '#kernel'
import { maxReplayBytes } from '#contracts/replay'
import { ExecuteRun, type RunnerService } from '#contracts/runner'
import { RunParams, TenantHeaders } from './schema.ts'
import { tenantOf } from './tenant.ts'

/** A prompt is at most 1,000,000 characters; the profile that creates a session comes along, and what was finished before. */
const maxRunBytes = 8 * 1024 * 1024 + maxReplayBytes

export function runRoutes(app: App, core: RunnerService): void {
  app.post(
    '/runner/runs',
    { ...access('network'), bodyLimit: maxRunBytes, schema: { headers: TenantHeaders, body: ExecuteRun } },
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
    { ...access('network'), schema: { headers: TenantHeaders, params: RunParams } },
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
