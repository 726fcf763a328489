import type { Statement } from '#contracts/database'
import type { CreateMemory } from '../schema.ts'
import type { RecordTerms } from '../text/terms.ts'
import { columns, happened } from './rows.ts'

/** The default confidence, 0 to 1. Curated memories have a higher confidence than mined ones. */
const confidenceOf = { curated: 1, mined: 0.7 } as const
/** A memory that is about to be stored. */
export interface Draft {
  readonly id: string
  readonly content: string
  readonly source: 'curated' | 'mined'
  readonly at: Date
  readonly person: number
  readonly digest: Buffer
  readonly essence: readonly string[]
  readonly fact: string | undefined
  readonly terms: RecordTerms
  /** True if the memory comes from the run that its input names. */
  readonly ofRun?: boolean
}

/** Counts a refused memory, by reason. */
export const refusal = (tenantId: string, reason: string): Statement => ({
  name: 'memory-refused',
  text: `INSERT INTO memory_refusals AS r (tenant_id, reason, count) VALUES ($1, $2, 1)
         ON CONFLICT (tenant_id, reason) DO UPDATE SET count = r.count + 1, last_at = now()`,
  values: [tenantId, reason],
})

const current = `m.superseded_by IS NULL AND (m.expires_at IS NULL OR m.expires_at > now())`
/** Finds memories with the same digest, the same fact, or the rarest words in common. */
export const lookNear = {
  name: 'memory-look-near',
  text: `WITH own AS MATERIALIZED (SELECT bank FROM memory_banks WHERE tenant_id = $1 AND profile = $2),
         rare AS MATERIALIZED (
           SELECT k.term FROM own CROSS JOIN unnest($7::text[]) AS asked (term) CROSS JOIN LATERAL (
             SELECT term, records FROM memory_terms WHERE tenant_id = $1 AND bank = own.bank AND term = asked.term OFFSET 0) k
           WHERE k.records <= 2000 ORDER BY k.records LIMIT 5
         ), alike AS MATERIALIZED (
           SELECT p.memory FROM own CROSS JOIN rare CROSS JOIN LATERAL (
             SELECT memory FROM memory_postings
             WHERE tenant_id = $1 AND bank = own.bank AND term = rare.term AND person = $3 OFFSET 0) p
           GROUP BY p.memory HAVING count(*) >= least(2, (SELECT count(*) FROM rare)) ORDER BY count(*) DESC, p.memory DESC LIMIT 6
         ), near AS (
           SELECT m.number FROM own CROSS JOIN LATERAL (
             SELECT number FROM memories WHERE tenant_id = $1 AND bank = own.bank AND person = $3 AND digest = $5 OFFSET 0) m
           UNION
           SELECT m.number FROM own CROSS JOIN LATERAL (
             SELECT number FROM memories WHERE tenant_id = $1 AND bank = own.bank AND person = $3 AND fact = $6 AND superseded_by IS NULL
             ORDER BY number DESC LIMIT 6) m
           UNION
           SELECT memory FROM alike
         )
         SELECT m.id, m.content, m.source, m.fact, m.at FROM near CROSS JOIN LATERAL (
           SELECT m.id, m.content, m.source, m.fact, ${happened} AS at FROM memories m WHERE m.tenant_id = $1 AND m.number = near.number
             AND ${current} AND m.end_user_id IS NOT DISTINCT FROM $4::text OFFSET 0) m
         ORDER BY near.number DESC LIMIT 16`,
}
/** Finds the terms of the previous statement in the same conversation. */
export const lookBefore = {
  name: 'memory-look-before',
  text: `SELECT ARRAY(SELECT t.term FROM unnest(m.terms, m.weights) AS t (term, weight)
           WHERE t.weight >= 100 AND NOT starts_with(t.term, '#')) AS terms
         FROM memories m WHERE m.tenant_id = $1 AND m.session_id = $2 AND m.profile = $3 ORDER BY m.number DESC LIMIT 1`,
}
export const lookOld = {
  name: 'memory-look-old',
  text: 'SELECT id FROM memories WHERE tenant_id = $1 AND profile = $2 AND id = $3',
}

/** Serializes the writes of a tenant, so that each write sees what the writes before it have stored. */
export const lock = {
  name: 'memory-lock',
  text: `SELECT pg_advisory_xact_lock(hashtextextended('memory/' || $1, 0))`,
}
export const openBank = {
  name: 'memory-open-bank',
  text: `INSERT INTO memory_banks (tenant_id, profile) SELECT $1, $2
         WHERE NOT EXISTS (SELECT FROM memory_banks WHERE tenant_id = $1 AND profile = $2) ON CONFLICT DO NOTHING`,
}
const same = `SELECT m.id FROM memory_banks b JOIN memories m ON m.tenant_id = $1 AND m.bank = b.bank
  WHERE b.tenant_id = $1 AND b.profile = $2 AND m.person = $3 AND m.end_user_id IS NOT DISTINCT FROM $4::text AND m.digest = $5 AND ${current} LIMIT 1`
/** SQL that is true if the person was erased since the run began. For a run that no longer exists, any erasure counts. */
const isErased = (run: string): string => `(${run}::text IS NOT NULL AND EXISTS (
  SELECT FROM memory_erasures e WHERE e.tenant_id = $1 AND e.person = $3
    AND e.at >= coalesce((SELECT r.started_at FROM runs r WHERE r.tenant_id = $1 AND r.id = ${run}), '-infinity')))`
export const insert = {
  name: 'memory-insert',
  text: `WITH added AS (
           INSERT INTO memories (tenant_id, profile, person, end_user_id, digest, id, bank, session_id, run_id, category, raw_input, content,
             summary, source, confidence, language, event_at, ttl_seconds, expires_at, supersedes, superseded_by, superseded_at, fact,
             terms, weights, length, bytes)
           SELECT $1, $2, $3, $4, $5, $6, b.bank, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17::integer, now() + $17 * interval '1 second',
             $18, $19::text, CASE WHEN $19::text IS NULL THEN NULL ELSE now() END, $20, $21::text[], $22::smallint[], $23, $24::integer
           FROM memory_banks b WHERE b.tenant_id = $1 AND b.profile = $2 AND NOT EXISTS (${same}) AND NOT ${isErased('$27')}
             AND (SELECT sum(records) < $25::bigint AND sum(bytes) + $24::integer <= $26::bigint FROM memory_banks WHERE tenant_id = $1)
           RETURNING *)
         SELECT ${columns} FROM added m`,
}
export const supersede = {
  name: 'memory-supersede',
  text: `UPDATE memories SET superseded_by = $3, superseded_at = now() WHERE tenant_id = $1 AND id = ANY ($2::text[])
           AND superseded_by IS NULL AND EXISTS (SELECT FROM memories WHERE tenant_id = $1 AND id = $3)`,
}
/** Finds out why `insert` stored nothing. */
export const why = {
  name: 'memory-why',
  text: `SELECT (${same}) AS same, ${isErased('$6')} AS erased, (SELECT coalesce(sum(records), 0)::float8 FROM memory_banks WHERE tenant_id = $1) AS records`,
}

/** The limits of an insert, and the memories that it supersedes. */
export interface Bounds {
  readonly bytes: number
  readonly most: number
  readonly mostBytes: number
  readonly supersedes: string | undefined
  readonly by: string | undefined
}

/** The parameters of `insert`, in order. */
export function valuesOf(
  tenantId: string,
  profile: string,
  input: CreateMemory,
  draft: Draft,
  bounds: Bounds,
): unknown[] {
  const { endUserId, sessionId, runId, category, rawInput, summary, confidence, eventAt, ttlSeconds } = input
  const { content, source, terms, at } = draft
  return [
    tenantId,
    profile,
    draft.person,
    endUserId ?? null,
    draft.digest,
    draft.id,
    sessionId ?? null,
    runId ?? null,
    category ?? null,
    rawInput?.toWellFormed().replaceAll('\0', '\uFFFD') ?? null,
    content,
    summary ?? null,
    source,
    confidence ?? confidenceOf[source],
    terms.language,
    eventAt === undefined ? null : at,
    ttlSeconds ?? null,
    bounds.supersedes ?? null,
    bounds.by ?? null,
    draft.fact ?? null,
    terms.terms,
    terms.weights,
    terms.length,
    bounds.bytes,
    bounds.most,
    bounds.mostBytes,
    draft.ofRun && draft.person !== 0 ? runId : null,
  ]
}
