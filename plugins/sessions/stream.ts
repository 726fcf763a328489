import { access, type App, eventStream, sse } from '#kernel'
import type { Guard } from '#contracts/auth'
import { isClientId } from '#contracts/ids'
import type { Kv } from '#contracts/kv'
import { lastSeqOf, type LogChunk } from '#contracts/run-event'
import type { RunStore } from '#contracts/run-store'
import type { RunDispatch } from '#contracts/runs'
import { sessionChannels } from '#contracts/sessions'
import { runFrames } from '#kit'
import { SessionParams } from './routes.ts'
import { sessionErrors } from './service.ts'

interface Sources {
  readonly store: Pick<RunStore, 'runsOfSession'>
  readonly dispatch: Pick<RunDispatch, 'follow'>
  readonly kv: Pick<Kv, 'subscribe'>
}

/** A position in a session: after event `seq` of its `ordinal`th run. `0.0` is the beginning. */
interface Cursor {
  readonly ordinal: number
  readonly seq: number
}

/** Parses `<ordinal>.<seq>`, the form in which the stream numbers its events. Any other text means the beginning. */
function readCursor(text: unknown): Cursor {
  const [, ordinal, seq] = (typeof text === 'string' && /^(\d{1,9})\.(\d{1,9})$/.exec(text)) || []
  return ordinal === undefined ? { ordinal: 0, seq: 0 } : { ordinal: Number(ordinal), seq: Number(seq) }
}

/** An ordinal greater than that of any run: the largest value of PostgreSQL's integer. */
const lastOrdinal = 2_147_483_647

export function sessionStreamRoutes(app: App, guard: Guard, deps: Sources): void {
  app.get(
    '/api/sessions/:id/stream',
    {
      ...access('member', { stream: true }),
      schema: {
        tags: ['sessions'],
        summary: 'Follow a session across its runs',
        description:
          'The events of all runs of the session in order, then those of future runs. `Last-Event-ID` resumes right after the event with that `id`. Ends when the session is shut down.',
        params: SessionParams,
        response: {
          200: eventStream('`event` is the type of a RunEvent, `data` the RunEvent, `id` one cursor across all runs.'),
        },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { id } = request.params
      const known = isClientId(id) && (await deps.store.runsOfSession(tenantId, id, lastOrdinal))
      if (!known) throw sessionErrors.notFound()
      const cursor = readCursor(request.headers['last-event-id'])
      await sse(request, reply, (signal) => frames(followSession(deps, tenantId, id, cursor, signal)))
      return reply
    },
  )
}

async function* frames(chunks: ReturnType<typeof followSession>): AsyncGenerator<string> {
  for await (const { ordinal, chunk } of chunks) {
    const out = runFrames(chunk, `${ordinal}.`)
    if (out !== '') yield out
  }
}

/** Milliseconds between looks for the next run, in case no wake-up arrives. */
const lookMs = 2_000

/** The events of a session after a cursor, run after run, including future ones. Ends after the last event of a session that was shut down. */
async function* followSession(
  { store, dispatch, kv }: Sources,
  tenantId: string,
  sessionId: string,
  from: Cursor,
  signal: AbortSignal,
): AsyncGenerator<{ ordinal: number; chunk: LogChunk }> {
  // The cursor's run is read again, from the event after the cursor.
  let done = Math.max(0, from.ordinal - 1)
  let woken = false
  let resume: (() => void) | undefined
  const wake = (): void => {
    woken = true
    resume?.()
  }
  const unsubscribe = kv.subscribe(`${sessionChannels}${tenantId}:${sessionId}`, wake)
  signal.addEventListener('abort', wake)
  try {
    while (!signal.aborted) {
      woken = false
      const found = await store.runsOfSession(tenantId, sessionId, done)
      for (const { runId, ordinal } of found?.runs ?? []) {
        const after = ordinal === from.ordinal ? from.seq : 0
        for await (const chunk of dispatch.follow(tenantId, runId, after, signal)) {
          // A log repeats its last event to a reader that already has it, as this reader does.
          if (lastSeqOf(chunk) !== after) yield { ordinal, chunk }
        }
        if (signal.aborted) return
        done = ordinal
      }
      if (found && found.runs.length > 0) continue
      if (!found || found.status === 'shutdown') return
      if (woken) continue
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, lookMs)
        resume = () => {
          clearTimeout(timer)
          resolve()
        }
      })
      resume = undefined
    }
  } finally {
    unsubscribe()
    signal.removeEventListener('abort', wake)
  }
}
