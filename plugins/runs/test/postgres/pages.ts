import type { Database, Statement } from '#contracts/database'

interface Answer {
  readonly 'QUERY PLAN': readonly [{ Plan: { 'Shared Hit Blocks': number; 'Shared Read Blocks': number } }]
}

const literal = (value: unknown): string => {
  if (value === null || value === undefined) return 'NULL'
  return Array.isArray(value) ? `'{${value.join(',')}}'` : `'${String(value)}'`
}

/**
 * How many pages each statement reads in a tenant that has grown since it was planned: a named statement keeps the plan from when the tables were small.
 * `grown`: statements that fill them.
 */
export async function readOnceGrown(
  db: Database,
  tenantId: string,
  sent: readonly Statement[],
  grown: readonly string[],
): Promise<{ readonly name: string; readonly pages: number }[]> {
  const executed = sent.map(({ values = [] }, i) =>
    values.length === 0 ? `EXECUTE sent${i}` : `EXECUTE sent${i} (${values.map(literal).join(', ')})`,
  )
  const texts = [
    'SET LOCAL plan_cache_mode = force_generic_plan',
    ...sent.map(({ text }, i) => `PREPARE sent${i} AS ${text}`),
    ...executed,
    ...grown,
    ...executed.map((text) => `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ${text}`),
    ...sent.map((_, i) => `DEALLOCATE sent${i}`),
  ]
  const answers = await db.batch<Answer[][]>(
    tenantId,
    texts.map((text) => ({ text })),
  )
  return answers.slice(-2 * sent.length, -sent.length).map(([answer], i) => {
    const { Plan: plan } = answer!['QUERY PLAN'][0]
    return { name: sent[i]!.name ?? sent[i]!.text, pages: plan['Shared Hit Blocks'] + plan['Shared Read Blocks'] }
  })
}
