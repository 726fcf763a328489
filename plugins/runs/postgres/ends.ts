import { type Database, sqlState, type Statement } from '#contracts/database'
import { publicMessageOf } from '#contracts/endings'
import { lastSeqOf, type LogChunk, type Usage } from '#contracts/run-event'
import type { Claim, FinishRun, RunStore } from '#contracts/run-store'
import { type Charges, secondsOfRun, settleValues, settling } from './charges.ts'
import { claimed, microcents, prepared, storable, storableOrNull } from './rows.ts'

// The share lock makes an append and the end of its run wait for each other, so nothing lands behind the terminal event.
// A conflict is our own retry after a lost answer: only the holder of the epoch writes this log.
const one = prepared(
  'run-append',
  `WITH owned AS (SELECT 1 FROM runs WHERE ${claimed} FOR SHARE), added AS (
     INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
     SELECT :tenant, :run, :firstSeq, :count, :lines FROM owned ON CONFLICT DO NOTHING
   )
   SELECT 1 FROM owned`,
)

// The lines of all chunks travel as one binary value, because an array of them would travel as text. PostgreSQL never turns a locking sub-select
// into a join, so each run is found by its key, whatever the planner knows about the table.
const many = prepared(
  'run-append-many',
  `WITH owned AS (
     SELECT g.* FROM unnest(:runs::text[], :epochs::bigint[], :firstSeqs::int[], :counts::int[], :starts::int[], :sizes::int[])
       WITH ORDINALITY AS g(run, epoch, first_seq, count, start, size, place)
     CROSS JOIN LATERAL (
       SELECT FROM runs WHERE tenant_id = :tenant AND id = g.run AND finished_at IS NULL AND claim_epoch = g.epoch FOR SHARE
     ) AS r
   ), added AS (
     INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
     SELECT :tenant, run, first_seq, count, substring(:lines::bytea FROM start FOR size) FROM owned ON CONFLICT DO NOTHING
   )
   SELECT place::int FROM owned`,
)

/** The most chunks of one statement: PostgreSQL finishes it within some milliseconds. */
const mostChunks = 128
const mostBytes = 256 * 1024

interface Waiting {
  readonly claim: Claim
  readonly chunk: LogChunk
  readonly resolve: (owned: boolean) => void
  readonly reject: (error: unknown) => void
}

/**
 * Appends to the logs of runs. Appends of one tenant that are requested in one turn of the event loop become one statement. With thousands of
 * streams that each produce a word a second, a statement per word would be most of their cost.
 */
class Appends {
  readonly #db: Database
  /** Appends that wait for the end of this turn, by tenant. */
  #waiting = new Map<string, Waiting[]>()

  constructor(db: Database) {
    this.#db = db
  }

  /** Resolves to false when the claim was lost and nothing was written. */
  readonly append: RunStore['append'] = (claim, chunk) =>
    new Promise((resolve, reject) => {
      if (this.#waiting.size === 0) queueMicrotask(() => this.#send())
      const ofTenant = this.#waiting.get(claim.tenantId)
      const waiting = { claim, chunk, resolve, reject }
      if (ofTenant) ofTenant.push(waiting)
      else this.#waiting.set(claim.tenantId, [waiting])
    })

  #send(): void {
    const all = this.#waiting
    this.#waiting = new Map()
    for (const [tenantId, waiting] of all) for (const group of groupsOf(waiting)) void this.#write(tenantId, group)
  }

  async #write(tenantId: string, group: readonly Waiting[]): Promise<void> {
    const [first] = group
    if (!first) return
    try {
      const rows = await this.#db.unit<{ place?: number }>(tenantId, statementOf(group), {
        order: first.claim.sessionId,
        bytes: group.reduce((sum, { chunk }) => sum + chunk.lines.length, 0),
      })
      const owned = new Set(rows.map(({ place = 1 }) => place))
      group.forEach(({ resolve }, i) => resolve(owned.has(i + 1)))
    } catch (error) {
      // If the server refuses one append, the whole group is rolled back and nothing was written. Retry each append alone.
      if (group.length > 1 && sqlState(error) !== undefined) {
        await Promise.all(group.map((waiting) => this.#write(tenantId, [waiting])))
      } else for (const { reject } of group) reject(error)
    }
  }
}

/** Sorted by session, the order in which all units of work take their locks. */
function groupsOf(waiting: readonly Waiting[]): Waiting[][] {
  const groups: Waiting[][] = []
  let bytes = Infinity
  for (const next of waiting.toSorted((a, b) => (a.claim.sessionId < b.claim.sessionId ? -1 : 1))) {
    const group = groups.at(-1)
    bytes += next.chunk.lines.length
    if (group && group.length < mostChunks && bytes <= mostBytes) group.push(next)
    else {
      groups.push([next])
      bytes = next.chunk.lines.length
    }
  }
  return groups
}

function statementOf(group: readonly Waiting[]): Statement {
  const [{ claim, chunk }] = group as readonly [Waiting]
  const { tenantId: tenant, runId: run, epoch } = claim
  if (group.length === 1) return one({ tenant, run, epoch, ...chunk })
  const chunks = group.map((waiting) => waiting.chunk)
  let end = 1
  return many({
    tenant,
    runs: group.map((waiting) => waiting.claim.runId),
    epochs: group.map((waiting) => waiting.claim.epoch),
    firstSeqs: chunks.map(({ firstSeq }) => firstSeq),
    counts: chunks.map(({ count }) => count),
    starts: chunks.map(({ lines }) => (end += lines.length) - lines.length),
    sizes: chunks.map(({ lines }) => lines.length),
    lines: Buffer.concat(chunks.map(({ lines }) => lines)),
  })
}

// As with an append, a conflict is our own retry after a lost answer.
const retry = prepared(
  'run-retry',
  `WITH owned AS (UPDATE runs SET attempt = :attempt, parked_at = NULL WHERE ${claimed} RETURNING 1), added AS (
     INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
     SELECT :tenant, :run, :firstSeq, :count, :lines FROM owned ON CONFLICT DO NOTHING
   )
   SELECT 1 FROM owned`,
)

// `released` finds its session by a sub-select: without statistics a join read every session of the tenant, 300 rows per run after 9,000 runs,
// until the first ANALYZE. The seconds of a sandbox run are added to its session's meter of the minute in the same statement, so they count exactly
// once.
const ended = (settled: string): string => `
  ended AS (
    UPDATE runs
    SET status = :status, finished_at = clock_timestamp(), result = :result, error_code = :errorCode,
        error_message = :errorMessage, usage = :usage::json, input = CASE WHEN :keepInput::boolean THEN input END
    WHERE ${claimed}
    RETURNING id, session_id, profile, started_at, finished_at, waited_ms, public_run${settled}
  ), meter AS (
    INSERT INTO run_meters (tenant_id, run_id, session_id, profile, status, started_at, model, input_tokens, output_tokens,
                            cached_tokens, tool_calls, cost_microcents, known_microcents)
    SELECT :tenant, id, session_id, profile, :status, started_at, :model::text, :inputTokens::bigint, :outputTokens::bigint,
      :cachedTokens::bigint, :toolCalls::int, :cost::bigint, :knownCost::bigint FROM ended
  ), released AS (
    UPDATE sessions s
    SET status = :sessionStatus, claim_owner = NULL, claim_run = NULL, last_run_status = :status, last_used_at = now(),
        runtime_session_id = coalesce(:handle, s.runtime_session_id), runner_hash = coalesce(:runner, s.runner_hash),
        context_tokens = coalesce(:contextTokens::bigint, s.context_tokens)
    WHERE s.tenant_id = :tenant AND s.id = (SELECT session_id FROM ended) AND s.claim_run = :run
  ), tail AS (
    INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
    SELECT :tenant, :run, :firstSeq::int, :count::int, :lines::bytea FROM ended WHERE :firstSeq::int IS NOT NULL
  )`
const sandbox = `
  sandbox AS (
    INSERT INTO usage_meters AS m (tenant_id, meter, subject, minute, amount)
    SELECT :tenant, 'sandbox_seconds', session_id, date_trunc('minute', finished_at),
      :idleSeconds::int + ${secondsOfRun}::bigint
    FROM ended
    ON CONFLICT (tenant_id, meter, subject, minute) DO UPDATE SET amount = m.amount + excluded.amount, recorded_at = now()
  )`
// The public run may already be ended, by a process of an earlier release or as lost.
const chat = `
  public AS (
    UPDATE public_runs SET status = :publicStatus, error_code = :errorCode, error_message = :told, last_seq = :lastSeq,
      finished_at = now()
    WHERE tenant_id = :tenant AND id = (SELECT public_run FROM ended) AND finished_at IS NULL
    RETURNING id, conversation_id
  ), answer AS (
    INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content, failed)
    SELECT :tenant, conversation_id, id, 'assistant', :answer, :failed FROM public
    ON CONFLICT DO NOTHING
  )`
const answer = `
  SELECT id, EXISTS (SELECT 1 FROM run_queue q WHERE q.tenant_id = :tenant AND q.session_id = ended.session_id) AS waiting
  FROM ended`
const finishesWith = (plain: string, inSandbox: string, suffix: string) => ({
  plain: prepared(`run-finish${suffix}`, `WITH ${ended(plain)} ${answer}`),
  chat: prepared(`run-finish-chat${suffix}`, `WITH ${ended(plain)}, ${chat} ${answer}`),
  sandbox: prepared(`run-finish-sandbox${suffix}`, `WITH ${ended(inSandbox)}, ${sandbox} ${answer}`),
  sandboxChat: prepared(`run-finish-sandbox-chat${suffix}`, `WITH ${ended(inSandbox)}, ${sandbox}, ${chat} ${answer}`),
})
const finishes = {
  free: finishesWith('', '', ''),
  billed: finishesWith(settling.plain, settling.sandbox, '-billed'),
}

// Deletes the session if this run created it. An existing session is restored to its state before the run.
const discarding = (released: string): string => `
   WITH gone AS (
     DELETE FROM runs WHERE ${claimed} RETURNING id, session_id, public_run, ordinal${released}
   ), events AS (
     DELETE FROM run_events WHERE tenant_id = :tenant AND run_id = (SELECT id FROM gone)
   ), created AS (
     DELETE FROM sessions WHERE tenant_id = :tenant AND id = (SELECT session_id FROM gone WHERE ordinal = 1) AND run_count = 1
     RETURNING id
   ), kept AS (
     UPDATE sessions SET status = CASE last_run_status WHEN 'error' THEN 'errored' ELSE 'idle' END,
       claim_owner = NULL, claim_run = NULL, run_count = run_count - 1
     WHERE tenant_id = :tenant AND id = (SELECT session_id FROM gone) AND claim_run = :run AND run_count > 1
   ), public AS (
     DELETE FROM public_runs WHERE tenant_id = :tenant AND id = (SELECT public_run FROM gone) RETURNING id, conversation_id
   ), message AS (
     DELETE FROM messages WHERE tenant_id = :tenant AND public_run_id = (SELECT id FROM public)
   ), conversation AS (
     DELETE FROM conversations c WHERE tenant_id = :tenant AND id = (SELECT conversation_id FROM public)
       AND session_id = (SELECT id FROM created)
       AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.tenant_id = :tenant AND m.conversation_id = c.id
                         AND m.public_run_id <> (SELECT id FROM public))
   )
   SELECT id, EXISTS (SELECT 1 FROM run_queue q WHERE q.tenant_id = :tenant AND q.session_id = gone.session_id) AS waiting
   FROM gone`
const discard = {
  free: prepared('run-discard', discarding('')),
  billed: prepared('run-discard-billed', discarding(', billing_release(:tenant, id)')),
}

/** The placeholder owner of runs that were handed over and wait for a new owner. */
export const handedOver = 'handed-over'
/** The notification channel that announces the tenant of a run that was handed over. */
export const leftTo = 'run_handovers'

const handOver = prepared(
  'run-hand-over',
  `WITH run AS (
     UPDATE runs SET claim_owner = '${handedOver}'
     WHERE ${claimed} RETURNING session_id
   ), session AS (
     UPDATE sessions SET claim_owner = '${handedOver}'
     WHERE tenant_id = :tenant AND id = (SELECT session_id FROM run) AND claim_run = :run
   )
   SELECT pg_notify('${leftTo}', :tenant) FROM run`,
)

const of = ({ tenantId, runId, epoch }: Claim) => ({ tenant: tenantId, run: runId, epoch })

// A run without usage cost nothing. A run whose model has no price has an unknown cost, and `knownCost` holds the cost of its other calls.
const costsOf = (usage: Usage | undefined): { cost: number | null; knownCost: number | null } => {
  if (!usage) return { cost: 0, knownCost: null }
  const { costCents, knownCostCents = 0 } = usage
  return costCents === undefined
    ? { cost: null, knownCost: microcents(knownCostCents) }
    : { cost: microcents(costCents), knownCost: null }
}

export function finishStatement(end: FinishRun, charges: Charges): Statement {
  const { claim, tail, usage, error } = end
  const kind = end.sandbox ? (claim.publicRunId ? 'sandboxChat' : 'sandbox') : claim.publicRunId ? 'chat' : 'plain'
  const told = error && publicMessageOf(error.code)
  return finishes[charges.billing ? 'billed' : 'free'][kind]({
    ...of(claim),
    ...(charges.billing && settleValues(charges, end)),
    ...tail,
    status: end.status,
    // The answer of a chat is stored with its messages, so it is not stored again with the run.
    result: claim.publicRunId && end.status === 'ok' ? null : storableOrNull(end.result),
    errorCode: error && storable(error.code),
    errorMessage: error && storable(error.message),
    usage: usage && JSON.stringify(usage),
    keepInput: end.keepInput ?? false,
    model: storableOrNull(usage?.model),
    inputTokens: usage?.inputTokens ?? 0,
    outputTokens: usage?.outputTokens ?? 0,
    cachedTokens: usage?.cachedTokens ?? 0,
    toolCalls: end.toolCalls ?? 0,
    ...costsOf(usage),
    sessionStatus: end.sessionStatus,
    handle: storableOrNull(end.runtimeSessionId),
    runner: end.runner,
    contextTokens: end.contextTokens,
    idleSeconds: end.sandbox?.idleSeconds,
    runSeconds: end.sandbox?.runSeconds,
    publicStatus: end.status === 'ok' ? 'ok' : 'error',
    told,
    answer: told ?? storable(end.result ?? ''),
    failed: end.status !== 'ok',
    lastSeq: tail ? lastSeqOf(tail) : 0,
  })
}

/** The row that ending a run returns: whether runs wait for the freed session. No row: the run was already over. */
export interface EndedRow {
  readonly id: string
  readonly waiting: boolean
}

/** Called with sessions that are free while runs wait for them. */
export type OnWanted = (tenantId: string, sessionId: string) => void

/** When a run of each tenant last ended in this process, in milliseconds of the monotonic clock. */
export type EndedAt = Map<string, number>

/** The writes of a run's claim holder. */
export function createEnds(db: Database, charges: Charges, onWanted: OnWanted, endedAt: EndedAt) {
  /** Executes a statement of a claimed run, which may free its session. False: the claim was lost. */
  const write = async ({ tenantId, sessionId }: Claim, statement: Statement, chunk?: LogChunk): Promise<boolean> => {
    const options = { order: sessionId, bytes: chunk?.lines.length ?? 0 }
    const [row] = await db.unit<Partial<EndedRow>>(tenantId, statement, options)
    if (row?.waiting) onWanted(tenantId, sessionId)
    return row !== undefined
  }
  return {
    append: new Appends(db).append,
    retry: (claim, attempt, chunk) => write(claim, retry({ ...of(claim), ...chunk, attempt }), chunk),
    finish(end) {
      endedAt.set(end.claim.tenantId, performance.now())
      return write(end.claim, finishStatement(end, charges), end.tail)
    },
    discard: (claim) => write(claim, discard[charges.billing ? 'billed' : 'free'](of(claim))),
    handOver: (claim) => write(claim, handOver(of(claim))),
  } satisfies Partial<RunStore>
}
