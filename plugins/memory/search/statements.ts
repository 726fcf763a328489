import { alive, happened, isOf } from '../bank/rows.ts'

/** BM25 parameters k1 (saturation of repeated terms) and b (influence of the length). Statements are short: both are low. */
export const k1 = 0.4
const b = 0.15
/** The weight at which a term reaches half of its highest score, and the amount that each word of a text of average length adds to that weight. */
export const saturation = 100 * k1 * (1 - b)
export const perWord = 100 * k1 * b
/** The most postings of one word that are read, newest first. */
export const mostOfWord = 2_000
/** A search begins with its filter if the filter matches at most this many memories. */
export const mostFew = 500
/** The most terms of a row that are checked. The terms of the content come first in a row. */
const mostLooked = 200
/** Names of a memory that can link to others. */
const mostNames = 12

/** What a term can stand for. SQL statements use the positions in this list. */
export const kinds = ['word', 'name', 'time', 'similar'] as const

/** The condition of a filter on a row `m`. The values of the filter are the parameters from `$first` on. */
const fits = (first: number): string => `${alive} AND ${isOf(`$${first}`, `$${first + 1}`)}
  AND ($${first + 2}::text IS NULL OR m.category = $${first + 2}::text)
  AND ($${first + 3}::timestamptz IS NULL OR ${happened} >= $${first + 3}::timestamptz)
  AND ($${first + 4}::timestamptz IS NULL OR ${happened} < $${first + 4}::timestamptz)
  AND ($${first + 5}::boolean OR m.superseded_by IS NULL)`

export const figures = {
  name: 'memory-bank',
  text: `SELECT b.bank, b.records::float8 AS records, b.words::float8 AS words,
           CASE WHEN $3::int[] IS NULL THEN b.records ELSE (
             SELECT coalesce(sum(p.records), 0) FROM memory_people p WHERE p.tenant_id = $1 AND p.bank = b.bank AND p.person = ANY ($3::int[])
           ) END::float8 AS theirs
         FROM memory_banks b WHERE b.tenant_id = $1 AND b.profile = $2`,
}
export const knownTerms = {
  name: 'memory-known-terms',
  text: `SELECT k.term, k.records FROM memory_banks b CROSS JOIN unnest($3::text[]) AS asked (term) CROSS JOIN LATERAL (
           SELECT term, records FROM memory_terms WHERE tenant_id = $1 AND bank = b.bank AND term = asked.term OFFSET 0) k
         WHERE b.tenant_id = $1 AND b.profile = $2`,
}
// Compares only words with the same first character, because reading the whole vocabulary for one spelling mistake would be too slow.
export const similar = {
  name: 'memory-similar-terms',
  text: `SELECT asked.word, near.term, near.records, near.likeness FROM unnest($3::text[], $4::text[], $5::text[]) AS asked (word, first, behind)
         CROSS JOIN LATERAL (
           SELECT term, records, likeness FROM (
             SELECT term, records, CASE WHEN char_length(term) BETWEEN char_length(asked.word) - 2 AND char_length(asked.word) + 2
               THEN similarity(term, asked.word)::float8 END AS likeness FROM (
               SELECT term, records FROM memory_terms WHERE tenant_id = $1 AND bank = $2 AND term >= asked.first AND term < asked.behind LIMIT 4000) first_alike
           ) close_ones WHERE likeness >= 0.4 ORDER BY likeness DESC LIMIT 3) near`,
}

const shown = `m.number::float8 AS memory, m.id, extract(epoch FROM ${happened})::float8 * 1000 AS at, m.confidence, m.source = 'curated' AS curated,
  m.superseded_by IS NOT NULL AS superseded`
const isOfKind = (kind: (typeof kinds)[number]): string => `a.kind = ${kinds.indexOf(kind)}`
const sumOf = (kind: (typeof kinds)[number]): string => `coalesce(sum(p.part) FILTER (WHERE ${isOfKind(kind)}), 0)`
/** SQL for the terms of a row that are keys of `asked`, with their weights. A row is read once, however many terms are asked. */
const ofRows = (asked: string): string => `CROSS JOIN LATERAL (
  SELECT array_agg(t.term) AS terms, array_agg(t.weight) AS weights FROM (
    SELECT unnest(f.terms) AS term, unnest(f.weights) AS weight WHERE ${asked}::jsonb IS NOT NULL LIMIT ${mostLooked}) t
  WHERE ${asked}::jsonb ? t.term) r`
/**
 * Finds the best memories by a rough sum over the postings read, with the sum of each kind of term. Words too common to read by postings are
 * checked in the rows of the memories found, which costs less. OFFSET 0 and LIMIT keep the inner selects separate look-ups; otherwise a planner
 * that thinks the table is small would scan it.
 */
export const find = {
  name: 'memory-find',
  text: `WITH found AS MATERIALIZED (
           SELECT p.memory, ${sumOf('word')} AS words, ${sumOf('name')} AS names, ${sumOf('time')} AS times, ${sumOf('similar')} AS alike,
             coalesce(sum(a.worth) FILTER (WHERE ${isOfKind('word')}), 0) / ${1 + k1} AS covered
           FROM unnest($3::text[], $4::float8[], $5::float8[], $6::int[], $7::float8[]) AS a (term, worth, per_word, kind, rough)
             CROSS JOIN LATERAL (
               SELECT memory, a.worth * weight / (weight + ${saturation}::float8 + a.per_word * length) AS part FROM memory_postings
               WHERE tenant_id = $1 AND bank = $2 AND term = a.term AND ($8::int[] IS NULL OR person = ANY ($8::int[]))
               ORDER BY person DESC, memory DESC LIMIT ${mostOfWord}) p
           GROUP BY p.memory HAVING NOT $18::boolean OR bool_or(${isOfKind('name')})
           ORDER BY sum(p.part * a.rough) DESC, p.memory DESC LIMIT $9
         ), fitting AS MATERIALIZED (
           SELECT m.*, f.words, f.names, f.times, f.alike, f.covered FROM found f CROSS JOIN LATERAL (
             SELECT ${shown}, m.length, m.terms, m.weights FROM memories m
             WHERE m.tenant_id = $1 AND m.number = f.memory AND ${fits(10)} OFFSET 0) m
           LIMIT $16
         )
         SELECT f.memory, f.id, f.at, f.confidence, f.curated, f.superseded, f.length, f.words, f.names, f.times, f.alike, f.covered,
           r.terms, r.weights, (SELECT count(*)::int FROM found) AS added
         FROM fitting f ${ofRows('$17')}`,
}
/** Like `find`, but for known memories, and from their rows alone. */
export const among = {
  name: 'memory-among',
  text: `SELECT f.memory, f.id, f.at, f.confidence, f.curated, f.superseded, f.length, 0 AS words, 0 AS names, 0 AS times, 0 AS alike,
           0 AS covered, r.terms, r.weights
         FROM unnest($2::bigint[]) AS n (number) CROSS JOIN LATERAL (
           SELECT ${shown}, m.length, m.terms, m.weights FROM memories m
           WHERE m.tenant_id = $1 AND m.number = n.number AND ${fits(3)} OFFSET 0) f ${ofRows('$9')}
         WHERE r.terms IS NOT NULL`,
}
/** Reads one memory more than `mostFew`. If it gets that many, the search does not begin with its filter. */
export const fewOfCategory = {
  name: 'memory-few-of-category',
  text: `SELECT number::float8 AS memory FROM memories WHERE tenant_id = $1 AND bank = $2 AND category = $3 LIMIT ${mostFew + 1}`,
}
// Two conditions use two indexes, because under row security no index is used for an expression such as `coalesce`. The filter later removes rows
// that are too many here.
const within = (time: string): string => `(SELECT number FROM memories WHERE tenant_id = $1 AND bank = $2
  AND ${time} >= coalesce($3::timestamptz, '-infinity') AND ${time} < coalesce($4::timestamptz, 'infinity') LIMIT ${mostFew + 1})`
export const fewOfTime = {
  name: 'memory-few-of-time',
  text: `SELECT number::float8 AS memory FROM (${within('event_at')} UNION ${within('created_at')}) few`,
}
export const others = {
  name: 'memory-others',
  text: `SELECT o.*, 0 AS words, 0 AS names, 0 AS times, 0 AS alike, 0 AS covered FROM unnest($2::bigint[]) AS n (number) CROSS JOIN LATERAL (
           SELECT ${shown} FROM memories m WHERE m.tenant_id = $1 AND m.number = n.number AND ${fits(3)} OFFSET 0) o`,
}
// Names that only begin a sentence are left out, because any word there has a capital letter.
export const names = {
  name: 'memory-names',
  text: `SELECT DISTINCT k.term, k.records FROM unnest($3::bigint[]) AS n (number) CROSS JOIN LATERAL (
           SELECT terms, weights FROM memories WHERE tenant_id = $1 AND number = n.number OFFSET 0) m CROSS JOIN LATERAL (
           SELECT t.term FROM unnest(m.terms, m.weights) AS t (term, weight)
           WHERE starts_with(t.term, '@') AND t.weight >= 100 LIMIT ${mostNames}) t CROSS JOIN LATERAL (
           SELECT term, records FROM memory_terms WHERE tenant_id = $1 AND bank = $2 AND term = t.term OFFSET 0) k`,
}
