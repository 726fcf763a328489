import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { endings, toldOf } from '#contracts/endings'
import { sentences } from './outcome.ts'

const everyMs = 5_000
/** A tenant with a run in doubt is looked at until the run is surely over: for this long after the doubt arose. */
const doubtMs = 60_000
/** All tenants, for what other processes left. */
const walkMs = 30_000
/** Rows that one statement ends. */
const limit = 200

const everyTenant = { name: 'chat-tenants', text: `SELECT id FROM tenants ORDER BY id` }

export async function tenantIds(database: Database): Promise<string[]> {
  const [rows] = await database.systemBatch<[{ id: string }[]]>([everyTenant])
  return rows.map(({ id }) => id)
}

// A start that came so late finds its public run `lost`, and is refused. A run that has ended while its public run is open was
// begun by an earlier release, whose gateway died before it could write the end.
const end = {
  name: 'chat-sweep',
  text: `WITH orphan AS (
           SELECT chat.id, run.session_id, run.result, run.error_code,
             CASE WHEN run.id IS NULL THEN 'lost' WHEN run.status = 'ok' THEN 'ok' ELSE 'error' END AS status,
             CASE WHEN run.id IS NULL THEN $2 WHEN run.status = 'ok' THEN coalesce(run.result, '')
               ELSE coalesce($4::json ->> run.error_code, $3) END AS told
           FROM public_runs chat LEFT JOIN runs run ON run.tenant_id = $1 AND run.id = chat.run_id
           WHERE chat.tenant_id = $1 AND chat.status IN ('dispatching', 'running')
             AND (run.finished_at IS NOT NULL OR
               (run.id IS NULL AND chat.status = 'dispatching' AND chat.created_at < now() - interval '30 seconds'))
           ORDER BY chat.id LIMIT ${limit} FOR UPDATE OF chat SKIP LOCKED),
         ended AS (
           UPDATE public_runs chat
           SET status = orphan.status, finished_at = now(),
             error_code = CASE orphan.status WHEN 'ok' THEN NULL WHEN 'lost' THEN 'lost' ELSE orphan.error_code END,
             error_message = CASE orphan.status WHEN 'ok' THEN NULL ELSE orphan.told END
           FROM orphan WHERE chat.tenant_id = $1 AND chat.id = orphan.id AND chat.finished_at IS NULL
           RETURNING chat.id, chat.conversation_id, chat.status, orphan.told, orphan.session_id),
         message AS (
           INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content, failed)
           SELECT $1, conversation_id, id, 'assistant', told, status <> 'ok' FROM ended
           ON CONFLICT DO NOTHING),
         conversation AS (
           UPDATE conversations SET session_id = coalesce(ended.session_id, conversations.session_id), updated_at = now()
           FROM ended WHERE conversations.tenant_id = $1 AND conversations.id = ended.conversation_id)
         SELECT status FROM ended`,
}
const toldByCode = JSON.stringify(Object.fromEntries(Object.keys(endings).map((code) => [code, toldOf(code)])))

/** Ends open public runs of a tenant that no process will end. Resolves to the status of each. */
async function endOrphans(database: Database, tenantId: string): Promise<('lost' | 'ok' | 'error')[]> {
  const values = [tenantId, sentences.lost, toldOf(''), toldByCode]
  const [rows] = await database.batch<[{ status: 'lost' | 'ok' | 'error' }[]]>(tenantId, [{ ...end, values }])
  return rows.map(({ status }) => status)
}

export interface Sweep {
  /** A run of this tenant is stored as `dispatching` that may never be begun. */
  doubt(tenantId: string): void
  /** Ends what nobody will end: with the tenants in doubt, or all of them. */
  run(everywhere: boolean): Promise<void>
  start(): void
  stop(): Promise<void>
}

/**
 * Makes `lost` of public runs that never came to be. Tenants are walked one by one, because row security hides their rows from
 * a statement without one.
 */
export function createSweep(database: Database, log: FastifyBaseLogger): Sweep {
  /** Until when, in monotonic milliseconds. */
  const doubtful = new Map<string, number>()
  let walked = Number.NEGATIVE_INFINITY
  let stopped = false
  let timer: NodeJS.Timeout | undefined
  let running: Promise<void> | undefined

  const run = async (everywhere: boolean): Promise<void> => {
    const now = performance.now()
    const isBoot = walked === Number.NEGATIVE_INFINITY
    const counts = { swept: 0, finished: 0, lost: 0 }
    for (const tenantId of everywhere ? await tenantIds(database) : [...doubtful.keys()]) {
      for (let more = true; more;) {
        if (stopped) return
        const ended = await endOrphans(database, tenantId)
        for (const status of ended) counts[status === 'lost' ? 'lost' : 'finished']++
        counts.swept += ended.length
        more = ended.length === limit
      }
      if (now > (doubtful.get(tenantId) ?? now)) doubtful.delete(tenantId)
    }
    if (everywhere) walked = now
    if (counts.swept > 0 || (everywhere && isBoot)) log.info(counts, 'crash.recovery.sweep')
  }
  const turn = (): void => {
    running ??= run(performance.now() - walked >= walkMs)
      .catch((err: unknown) => log.warn({ err }, 'the sweep of lost runs failed; it is tried again'))
      .finally(() => {
        running = undefined
      })
  }
  return {
    doubt: (tenantId) => void doubtful.set(tenantId, performance.now() + doubtMs),
    run,
    start() {
      timer = setInterval(turn, everyMs).unref()
      turn()
    },
    async stop() {
      stopped = true
      clearInterval(timer)
      await running
    },
  }
}
