import type pg from 'pg'
import { ownNamespace, rowSecurityProblems } from './row-security.ts'

interface Relation {
  readonly schema: string
  readonly relation: string
  /** As a sentence names it: `table runs`, `view notes.newest`. */
  readonly name: string
  /** Its columns with their types: whether somebody changed it. */
  readonly columns: string
}

/** What the schema consists of, to be compared before and after a migration of a plugin. */
export interface Census {
  readonly relations: ReadonlyMap<string, Relation>
  readonly problems: readonly string[]
}

const relations = `
  SELECT n.nspname AS schema, c.relname AS relation,
    CASE c.relkind WHEN 'S' THEN 'sequence ' WHEN 'v' THEN 'view ' WHEN 'm' THEN 'materialized view ' ELSE 'table ' END
      || c.oid::regclass AS name,
    (SELECT coalesce(string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull), ', ' ORDER BY a.attnum), '')
     FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND ${ownNamespace}`

export async function censusOf(client: pg.Client): Promise<Census> {
  const { rows } = await client.query<Relation>(relations)
  return {
    relations: new Map(rows.map((row) => [row.name, row])),
    problems: await rowSecurityProblems({
      query: async <Row extends object>({ text }: { text: string }) => (await client.query<Row>(text)).rows,
    }),
  }
}

/** What a migration of `plugin` did that none may, as sentences: it keeps to its names, and leaves row security whole. */
export function trespasses(plugin: string, before: Census, after: Census): string[] {
  const own = plugin.replaceAll('-', '_')
  const isOwn = ({ schema, relation }: Relation): boolean =>
    schema === own || relation === own || relation.startsWith(`${own}_`)
  const where = `what belongs to the plugin ${plugin} is named ${own}_… or lies in a schema ${own}`
  const created = [...after.relations.values()].filter(({ name }) => !before.relations.has(name))
  const touched = [...before.relations.values()].filter(
    ({ name, columns }) => after.relations.get(name)?.columns !== columns,
  )
  return [
    ...created.filter((one) => !isOwn(one)).map(({ name }) => `it creates the ${name}, but ${where}`),
    ...touched.filter((one) => !isOwn(one)).map(({ name }) => `it changes or drops the ${name}, but ${where}`),
    // What was wrong before is not its doing, such as the view of an extension that an operator installed.
    ...after.problems.filter((problem) => !before.problems.includes(problem)),
  ]
}
