import { linesOf } from '#kernel'
import type { Statement, TenantTx } from '#contracts/database'
import { toldOf } from '#contracts/endings'
import { microcentsPerCent, type Prices } from '#contracts/prices'
import { createEventEncoder, lastSeqOf, parseLine, peekType, type Usage } from '#contracts/run-event'
import type { Claim, EndReason, FinishRun } from '#contracts/run-store'
import type { LogChunk, TerminalRunStatus } from '#contracts/runs'
import { restoredFromLog } from '#contracts/runtime'
import { createSandboxUseReader, createUsageTally } from '#contracts/usage'
import { type ChunkRow, prepared, storable } from './rows.ts'

// `finished_at IS NULL` is `status IN ('queued', 'running')` by constraint, and no claim has the epoch of a run that waits.
// Written so, the planner cannot take the partial index of running runs, which on a table without statistics it prefers to the
// primary key, and then reads every running run of the tenant. For the same reason `released` names its session by a
// sub-select: a join read every session of the tenant, 300 rows a run after 9,000 runs, until the first ANALYZE.
const owned = 'tenant_id = :tenant AND id = :run AND finished_at IS NULL AND claim_epoch = :epoch'

const added = `
  added AS (
    INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
    SELECT :tenant, :run, :firstSeq, :count, :lines FROM owned ON CONFLICT DO NOTHING
  )
  SELECT 1 FROM owned`

// The share lock makes an append and the end of its run wait for each other, so nothing lands behind the terminal event.
// A conflict is our own retry after a lost answer: only the holder of the epoch writes this log.
const append = prepared('run-append', `WITH owned AS (SELECT 1 FROM runs WHERE ${owned} FOR SHARE), ${added}`)
const retry = prepared(
  'run-retry',
  `WITH owned AS (UPDATE runs SET attempt = :attempt WHERE ${owned} RETURNING 1), ${added}`,
)

// A run in a sandbox is added to its session's meter of the minute, with the change that only one end of the run can make.
const ended = `
  ended AS (
    UPDATE runs
    SET status = :status, finished_at = clock_timestamp(), result = :result, error_code = :errorCode,
        error_message = :errorMessage, usage = :usage::json, input = CASE WHEN :keepInput::boolean THEN input END
    WHERE ${owned}
    RETURNING id, session_id, profile, started_at, finished_at, public_run
  ), meter AS (
    INSERT INTO run_meters (tenant_id, run_id, session_id, profile, status, started_at, model, input_tokens, output_tokens,
                            cached_tokens, tool_calls, cost_microcents)
    SELECT :tenant, id, session_id, profile, :status, started_at, :model::text, :inputTokens::bigint, :outputTokens::bigint,
      :cachedTokens::bigint, :toolCalls::int, :cost::bigint FROM ended
  ), released AS (
    UPDATE sessions s
    SET status = :sessionStatus, claim_owner = NULL, claim_run = NULL, last_run_status = :status, last_used_at = now(),
        runtime_session_id = coalesce(:handle, s.runtime_session_id), runner_hash = coalesce(:runner, s.runner_hash)
    WHERE s.tenant_id = :tenant AND s.id = (SELECT session_id FROM ended) AND s.claim_run = :run
  ), tail AS (
    INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
    SELECT :tenant, :run, :firstSeq::int, :count::int, :lines::bytea FROM ended WHERE :firstSeq::int IS NOT NULL
  )`
const sandbox = `
  sandbox AS (
    INSERT INTO usage_meters AS m (tenant_id, meter, subject, minute, amount)
    SELECT :tenant, 'sandbox_seconds', session_id, date_trunc('minute', finished_at),
      :idleSeconds::int + round(least(extract(epoch FROM finished_at - started_at), :runSeconds::int))::bigint
    FROM ended
    ON CONFLICT (tenant_id, meter, subject, minute) DO UPDATE SET amount = m.amount + excluded.amount, recorded_at = now()
  )`
// Another process may have ended the public run already, of an earlier release or as lost.
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
const finishes = {
  plain: prepared('run-finish', `WITH ${ended} ${answer}`),
  chat: prepared('run-finish-chat', `WITH ${ended}, ${chat} ${answer}`),
  sandbox: prepared('run-finish-sandbox', `WITH ${ended}, ${sandbox} ${answer}`),
  sandboxChat: prepared('run-finish-sandbox-chat', `WITH ${ended}, ${sandbox}, ${chat} ${answer}`),
}

// A session that the run has created goes with it; another one is as it was before.
const discard = prepared(
  'run-discard',
  `WITH gone AS (
     DELETE FROM runs WHERE ${owned} RETURNING id, session_id, public_run, ordinal
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
   FROM gone`,
)

/** The owner of runs whose owner has left them to others. */
export const handedOver = 'handed-over'
/** The channel on which everybody is told of the tenant of such a run. */
export const leftTo = 'run_handovers'

const handOver = prepared(
  'run-hand-over',
  `WITH run AS (
     UPDATE runs SET claim_owner = '${handedOver}'
     WHERE ${owned} RETURNING session_id
   ), session AS (
     UPDATE sessions SET claim_owner = '${handedOver}'
     WHERE tenant_id = :tenant AND id = (SELECT session_id FROM run) AND claim_run = :run
   )
   SELECT pg_notify('${leftTo}', :tenant) FROM run`,
)

const of = ({ tenantId, runId, epoch }: Claim) => ({ tenant: tenantId, run: runId, epoch })
export const appendStatement = (claim: Claim, chunk: LogChunk): Statement => append({ ...of(claim), ...chunk })
export const retryStatement = (claim: Claim, attempt: number, chunk: LogChunk): Statement =>
  retry({ ...of(claim), ...chunk, attempt })
export const discardStatement = (claim: Claim): Statement => discard(of(claim))
export const handOverStatement = (claim: Claim): Statement => handOver(of(claim))

// A run without usage cost nothing; one whose model has no price cost something unknown.
const costOf = ({ costCents }: Usage): number | null =>
  costCents === undefined ? null : Math.round(costCents * microcentsPerCent)

export function finishStatement(end: FinishRun): Statement {
  const { claim, tail, usage, error } = end
  const kind = end.sandbox ? (claim.publicRunId ? 'sandboxChat' : 'sandbox') : claim.publicRunId ? 'chat' : 'plain'
  const told = error && toldOf(error.code)
  return finishes[kind]({
    ...of(claim),
    ...tail,
    status: end.status,
    result: end.result === undefined ? null : storable(end.result),
    errorCode: error && storable(error.code),
    errorMessage: error && storable(error.message),
    usage: usage && JSON.stringify(usage),
    keepInput: end.keepInput ?? false,
    model: usage?.model === undefined ? null : storable(usage.model),
    inputTokens: usage?.inputTokens ?? 0,
    outputTokens: usage?.outputTokens ?? 0,
    cachedTokens: usage?.cachedTokens ?? 0,
    toolCalls: end.toolCalls ?? 0,
    cost: usage === undefined ? 0 : costOf(usage),
    sessionStatus: end.sessionStatus,
    handle: end.runtimeSessionId === undefined ? null : storable(end.runtimeSessionId),
    runner: end.runner,
    idleSeconds: end.sandbox?.idleSeconds,
    runSeconds: end.sandbox?.runSeconds,
    publicStatus: end.status === 'ok' ? 'ok' : 'error',
    told,
    answer: told ?? storable(end.result ?? ''),
    failed: end.status !== 'ok',
    lastSeq: tail ? lastSeqOf(tail) : 0,
  })
}

/** What the end of a run answers: whether runs wait for the session that it has freed. No row: it was over. */
export interface EndedRow {
  readonly id: string
  readonly waiting: boolean
}

const nextSeqs = {
  name: 'run-next-seqs',
  text: `SELECT run_id, max(first_seq + count) AS next FROM run_events WHERE tenant_id = $1 AND run_id = ANY($2) GROUP BY run_id`,
}

/** A run that was taken from its owner or its queue. */
export interface Taken {
  readonly id: string
  readonly session_id: string
  readonly epoch: number
  readonly public_run?: string | null | undefined
  /** Of its session; absent of what was never begun. */
  readonly runtime?: string
}

export const claimOf = (tenantId: string, { id, session_id, epoch, public_run }: Taken): Claim => ({
  tenantId,
  sessionId: session_id,
  runId: id,
  epoch,
  ...(public_run ? { publicRunId: public_run } : {}),
})

/**
 * Ends what was taken from its owner or its queue, each with one terminal event behind its last stored one. Resolves to the
 * sessions that are free now while runs wait for them.
 */
export async function endTaken(
  tx: TenantTx,
  taken: readonly Taken[],
  status: TerminalRunStatus,
  reason: EndReason,
  prices?: Prices,
): Promise<string[]> {
  if (taken.length === 0) return []
  const { tenantId } = tx
  const wanted: string[] = []
  const seqs = await tx.query<{ run_id: string; next: number }>({
    ...nextSeqs,
    values: [tenantId, taken.map((run) => run.id)],
  })
  const next = new Map(seqs.map((row) => [row.run_id, row.next]))
  for (const run of taken) {
    const firstSeq = next.get(run.id) ?? 1
    // What nobody began has used nothing.
    const used = next.has(run.id) ? await tallyOf(tx, run.id, prices) : {}
    const line = createEventEncoder(run.id, run.session_id, firstSeq).line({ type: 'error', ...reason })
    const [row] = await tx.query<EndedRow>(
      finishStatement({
        claim: claimOf(tenantId, run),
        status,
        sessionStatus: 'idle',
        error: reason,
        keepInput: run.runtime !== undefined && restoredFromLog(run.runtime),
        ...used,
        tail: { firstSeq, count: 1, lines: Buffer.from(line) },
      }),
    )
    if (row?.waiting) wanted.push(run.session_id)
  }
  return wanted
}

// Only chunks that hold such an event leave the database: the text of a run is none of its meters. The last one tells until when
// the run was heard of.
const telling = {
  name: 'run-telling-chunks',
  text: `
    SELECT first_seq, lines FROM run_events
    WHERE tenant_id = $1 AND run_id = $2
      AND (position('{"type":"usage"'::bytea IN lines) > 0 OR position('{"type":"tool_call"'::bytea IN lines) > 0
        OR position('"stage":"runner_accepted"'::bytea IN lines) > 0 OR position('"stage":"sandbox"'::bytea IN lines) > 0
        OR first_seq = (SELECT max(first_seq) FROM run_events WHERE tenant_id = $1 AND run_id = $2))
    ORDER BY first_seq`,
}

/** What a run has used, from its stored log: whoever executed it is gone and tells no more. */
async function tallyOf(
  tx: TenantTx,
  runId: string,
  prices: Prices | undefined,
): Promise<Pick<FinishRun, 'usage' | 'toolCalls' | 'sandbox'>> {
  const tally = createUsageTally(prices)
  const sandboxes = createSandboxUseReader()
  let toolCalls = 0
  let first: Buffer | undefined
  let last: Buffer | undefined
  const rows = await tx.query<Omit<ChunkRow, 'count'>>({ ...telling, values: [tx.tenantId, runId] })
  for (const { first_seq: firstSeq, lines } of rows) {
    let seq = firstSeq
    for (const line of linesOf(lines)) {
      first ??= line
      last = line
      sandboxes.read(line, seq++)
      const type = peekType(line)
      if (type === 'tool_call') toolCalls++
      const event = type === 'usage' ? parseLine(line) : undefined
      if (event) tally.add(event)
    }
  }
  return {
    toolCalls,
    ...(tally.usage ? { usage: tally.usage } : {}),
    ...(sandboxes.use ? { sandbox: { ...sandboxes.use, runSeconds: secondsBetween(first!, last!) } } : {}),
  }
}

/** Nobody may have looked for long after it was cut off, and its sandbox was idle since. */
function secondsBetween(first: Buffer, last: Buffer): number {
  const [from, to] = [first, last].map((line) => Date.parse(String(parseLine(line)?.['at'])))
  return Math.max(0, Math.round((to! - from!) / 1_000)) || 0
}
