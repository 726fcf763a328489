import pg from 'pg'

/** The forms in which a value may turn up: as it is, in JSON, for a URL, in hex, and in base64 wherever it begins. */
export function formsOf(value: string): readonly string[] {
  const bytes = Buffer.from(value)
  const base64 = [0, 1, 2].map((shift) => {
    const text = Buffer.concat([Buffer.alloc(shift), bytes])
      .toString('base64')
      .replaceAll('=', '')
    // What depends on the bytes around it is cut off.
    const whole = Math.floor(((shift + bytes.length) * 8) / 6)
    return text.slice(Math.ceil((shift * 8) / 6), whole)
  })
  return [
    value,
    JSON.stringify(value).slice(1, -1),
    encodeURIComponent(value),
    encodeURI(value),
    bytes.toString('hex'),
    bytes.toString('hex').toUpperCase(),
    ...base64,
    ...base64.map((text) => text.replaceAll('+', '-').replaceAll('/', '_')),
  ]
}

/** The names of the values that are in a text, in whatever form. */
export const foundIn = (text: string, values: Readonly<Record<string, string>>): string[] =>
  Object.entries(values)
    .filter(([, value]) => formsOf(value).some((form) => text.includes(form)))
    .map(([name]) => name)

/** Every row of every table as text, as a tenant sees them; bytes in hex. */
export async function dumpOf(dsn: string, tenantId: string): Promise<ReadonlyMap<string, string>> {
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    await client.query(`SELECT set_config('app.tenant_id', $1, false)`, [tenantId])
    const { rows: tables } = await client.query<{ name: string }>(
      `SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'`,
    )
    const dump = new Map<string, string>()
    for (const { name } of tables) {
      const { rows } = await client.query<{ row: string }>(`SELECT t::text AS row FROM ${name} t`)
      dump.set(name, rows.map(({ row }) => row).join('\n'))
    }
    return dump
  } finally {
    await client.end()
  }
}
