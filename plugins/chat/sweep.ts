import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { endings, toldOf } from '#contracts/endings'
import { sentences } from './outcome.ts'
import { createTenantWalk, type TenantWalk } from './tenant-walk.ts'

const everyMs = 5_000
/** A run in doubt is surely over so long after the doubt arose. */
const lingerMs = 60_000
const walkMs = 30_000
/** Rows that one statement ends. */
const limit = 200

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

type Ended = { status: 'lost' | 'ok' | 'error' }[]

/** Ends open public runs that nobody else will end: those in doubt that never came to be, as `lost`. Touch a tenant with one in doubt. */
export function createSweep(database: Database, log: FastifyBaseLogger): TenantWalk {
  let counts = { swept: 0, finished: 0, lost: 0 }
  let isBoot = true
  return createTenantWalk({
    database,
    everyMs,
    lingerMs,
    walkMs,
    async visit(tenantId) {
      const values = [tenantId, sentences.lost, toldOf(''), toldByCode]
      for (let more = true; more;) {
        const [ended] = await database.batch<[Ended]>(tenantId, [{ ...end, values }])
        for (const { status } of ended) counts[status === 'lost' ? 'lost' : 'finished']++
        counts.swept += ended.length
        more = ended.length === limit
      }
    },
    onTurn(everybody, [err]) {
      if (err !== undefined) log.warn({ err }, 'the sweep of lost runs failed; it is tried again')
      const isFirst = isBoot && everybody && err === undefined
      if (isFirst) isBoot = false
      if (counts.swept === 0 && !isFirst) return
      log.info(counts, 'crash.recovery.sweep')
      counts = { swept: 0, finished: 0, lost: 0 }
    },
  })
}
