import { access, type App, eventStream, failures, lastEventId, notFound, sse, sseFrame } from '#kernel'
import type { Guard } from '#contracts/auth'
import type { Kv } from '#contracts/kv'
import { limitErrors, type TenantLimits } from '#contracts/limits'
import { runChannel } from './engine.ts'
import type { RunKey } from './outputs.ts'
import type { WorkflowRunStore } from './runs.store.ts'
import { RunParams, runStatuses } from './schema.ts'
import type { RunViews } from './views.store.ts'

/** Where changes of runs are stored (`store`) and announced (`kv`). */
type Source = { readonly store: WorkflowRunStore; readonly kv: Kv; readonly limits: TenantLimits | undefined }
export function runStreamRoute(app: App, guard: Guard, views: RunViews, source: Source): void {
  app.get(
    '/api/workflows/runs/:id/stream',
    {
      ...access('member', { stream: true }),
      schema: {
        tags: ['workflows'],
        summary: 'Follow a workflow run',
        description:
          'One `snapshot`, then a `plan_status` for each change, until the run is over. `Last-Event-ID` resumes after the event with that `id`, without a snapshot, on any server.',
        params: RunParams,
        response: {
          200: eventStream(
            '`data` is `{workflowRun}`: of a `snapshot` the whole run, of a `plan_status` its status and the nodes that changed.',
          ),
          ...failures(notFound, limitErrors.limitReached),
        },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { id } = request.params
      const after = lastEventId(request)
      // An id behind the last event is of another run, or from before a restore of the database: its reader begins anew.
      const resumes = after > 0 && after <= (await source.store.statusOf(tenantId, id)).seq
      const frame = resumes ? undefined : await heldSnapshot(views, source.limits, { tenantId, runId: id })
      try {
        await sse(request, reply, async function* (signal) {
          if (frame) yield frame.take()
          frame?.release()
          yield* changes(source, { tenantId, runId: id, after: frame?.seq ?? after }, signal)
        })
      } finally {
        frame?.release()
      }
      return reply
    },
  )
}

/**
 * The frame of a snapshot, which counts for its tenant until `release`. A stream lasts for hours and a snapshot has megabytes, so `take` returns it
 * once, and nothing refers to it afterwards.
 */
async function heldSnapshot(
  views: RunViews,
  limits: TenantLimits | undefined,
  { tenantId, runId }: RunKey,
): Promise<{ readonly seq: number; take(): string; release(): void }> {
  const { seq, json } = await views.snapshot(tenantId, runId)
  const release = limits?.holdAnswer(tenantId, json.length) ?? (() => {})
  if (typeof release !== 'function') throw release
  let left = json
  return {
    seq,
    take() {
      const frame = sseFrame('snapshot', `{"workflowRun":${left}}`, seq)
      left = ''
      return frame
    },
    release,
  }
}

/** A process may die before it announces a change, so each stream also looks at this interval. */
const lookMs = 5_000

async function* changes(
  { store, kv }: Source,
  { tenantId, runId, after }: { readonly tenantId: string; readonly runId: string; readonly after: number },
  signal: AbortSignal,
): AsyncGenerator<string> {
  let wake = (): void => {}
  const told = (): void => wake()
  const leave = kv.subscribe(runChannel(tenantId, runId), told)
  signal.addEventListener('abort', told)
  const timer = setInterval(told, lookMs).unref()
  try {
    for (let seq = after; !signal.aborted;) {
      const woken = new Promise<void>((resolve) => (wake = resolve))
      // The status is read before the events: when it says that the run is over, the events read after it include the last one.
      const { status, seq: last } = await store.statusOf(tenantId, runId)
      for (let read = true; read;) {
        const events = await store.events(tenantId, runId, seq)
        for (const one of events) yield sseFrame('plan_status', one.event, one.seq)
        seq = events.at(-1)?.seq ?? seq
        read = events.length > 0 && !signal.aborted
      }
      if (runStatuses.indexOf(status) > 2 && seq >= last) return
      await woken
    }
  } finally {
    clearInterval(timer)
    signal.removeEventListener('abort', told)
    leave()
  }
}
