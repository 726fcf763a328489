import pg from 'pg'
import { isServerAway } from './errors.ts'
import { type Migration, MigrationFailed, readMigrations } from './migrations.ts'
import type { SystemTx } from '#contracts/database'

const longestMs = 30 * 60_000

/**
 * Brings the database to this release's schema, and resolves to the names of the migrations that it applied. Any number of processes may do so at
 * once. Rows of a later release are left alone, so that the previous binary runs on the next schema. Our migrations come before those of plugins,
 * because ours create the table that records them.
 */
export async function migrate(dsn: string, migrations?: readonly Migration[]): Promise<string[]> {
  const client = new pg.Client({
    connectionString: dsn,
    connectionTimeoutMillis: 5_000,
    // The only limit of a migration. It detects a server that vanished without closing the connection.
    query_timeout: longestMs,
    keepAlive: true,
    application_name: 'agent-orc migrate',
  })
  client.on('error', () => {})
  await client.connect()
  try {
    await createLedger(client)
    const applied: string[] = []
    const pending = await pendingMigrations(client, migrations ?? (await readMigrations()))
    for (const m of pending) if (await apply(client, m)) applied.push(m.name)
    return applied
  } finally {
    await client.end().catch(() => {})
  }
}

async function createLedger(client: pg.Client): Promise<void> {
  const sql = `CREATE TABLE IF NOT EXISTS schema_migrations (
    number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())`
  // IF NOT EXISTS is not atomic: two first boots may collide in the catalog. The table exists in that case too.
  await client.query(sql).catch((error: { code?: string }) => {
    if (!['23505', '42P07', '42710'].includes(error.code ?? '')) throw error
  })
}

/**
 * Insert the row first: a second process waits on its primary key until the first one has committed, and then finds the work done, or takes over
 * when the first one failed. An advisory lock would break behind a transaction pooler.
 */
async function apply(client: pg.Client, m: Migration): Promise<boolean> {
  await client.query('BEGIN')
  try {
    const claimed = await claim(client, m)
    if (!claimed) await checkSame(client, m)
    else if (m.plugin === undefined) await client.query(m.sql)
    else await applyWithin(client, m.plugin, m)
    await client.query('COMMIT')
    return claimed
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {})
    throw describe(error, m)
  }
}

/** False: the migration is already applied. */
async function claim(client: pg.Client, { plugin, number, name, checksum }: Migration): Promise<boolean> {
  const [columns, values] =
    plugin === undefined
      ? ['schema_migrations (number, name, checksum) VALUES ($1, $2, $3)', [number, name, checksum]]
      : ['plugin_migrations (number, name, checksum, plugin) VALUES ($1, $2, $3, $4)', [number, name, checksum, plugin]]
  const { rowCount } = await client.query(`INSERT INTO ${columns} ON CONFLICT DO NOTHING RETURNING number`, values)
  return rowCount === 1
}

/** Applies a plugin's migration, and refuses changes outside its namespace and tables that mix the rows of tenants. */
async function applyWithin(client: pg.Client, plugin: string, { name, sql }: Migration): Promise<void> {
  // No other migration can change the schema between the two inspections: it would hold a row of this ledger, or wait here too.
  await client.query('LOCK TABLE schema_migrations IN SHARE ROW EXCLUSIVE MODE')
  const before = await censusOf(client)
  await client.query(sql)
  const problems = trespasses(plugin, before, await censusOf(client))
  if (problems.length === 0) return
  throw new MigrationFailed(
    `Migration ${name} was refused and rolled back: ${problems.join('; ')}. See "A table of its own" in docs/plugins.md.`,
  )
}

async function checkSame(client: pg.Client, m: Migration): Promise<void> {
  refuseChanged(m, (await readLedger(client)).get(placeOf(m)))
}

/** Refuses a migration whose file is not the one that the database has applied. */
function refuseChanged({ name, checksum }: Migration, applied: Applied | undefined): void {
  if (applied?.checksum === checksum) return
  throw new MigrationFailed(
    `Migration ${name} is not the one that this database has applied as ${applied?.name}: ` +
      'its file was changed. Restore it and write the change as a new migration.',
  )
}

/** The error of a lost connection is kept, because the migration may be retried. Any other error becomes `MigrationFailed`. */
const describe = (error: unknown, m: Migration): unknown =>
  error instanceof MigrationFailed || isServerAway(error)
    ? error
    : new MigrationFailed(`Migration ${m.name} failed and was rolled back: ${(error as Error).message}`, {
        cause: error,
      })

/** Those of `wanted` that were not applied to the database yet. */
export async function missingMigrations(client: pg.Client, wanted: readonly Migration[]): Promise<Migration[]> {
  const ledger = await readLedger(client)
  return wanted.filter((m) => !ledger.has(placeOf(m)))
}

/**
 * As `missingMigrations`, and refuses those that were applied from another file. The ledger is read once, because nearly every start finds
 * everything applied, and asking for one migration after the other would be two hundred round trips.
 */
export async function pendingMigrations(client: pg.Client, wanted: readonly Migration[]): Promise<Migration[]> {
  const ledger = await readLedger(client)
  return wanted.filter((m) => {
    const applied = ledger.get(placeOf(m))
    if (applied) refuseChanged(m, applied)
    return !applied
  })
}

interface Applied {
  readonly name: string
  readonly checksum: string
}

/** The key of a migration in the ledger of a database. */
const placeOf = ({ plugin = '', number }: Pick<Migration, 'plugin' | 'number'>): string => `${plugin}/${number}`

/** What the database has applied, by `placeOf`. */
async function readLedger(client: pg.Client): Promise<ReadonlyMap<string, Applied>> {
  const { rows: found } = await client.query<{ ledger: string | null; plugins: string | null }>(
    `SELECT to_regclass('schema_migrations') AS ledger, to_regclass('plugin_migrations') AS plugins`,
  )
  const ledgers: string[] = []
  if (found[0]!.ledger !== null) ledgers.push(`SELECT '' AS plugin, number, name, checksum FROM schema_migrations`)
  if (found[0]!.plugins !== null) ledgers.push('SELECT plugin, number, name, checksum FROM plugin_migrations')
  if (ledgers.length === 0) return new Map()
  const { rows } = await client.query<Applied & { plugin: string; number: number }>(ledgers.join(' UNION ALL '))
  return new Map(rows.map((row) => [placeOf(row), row]))
}

interface Relation {
  readonly schema: string
  readonly relation: string
  /** The name as a sentence uses it: `table runs`, `view notes.newest`. */
  readonly name: string
  /** The columns with their types, to detect changes. */
  readonly columns: string
}

/** The contents of the schema, compared before and after a plugin's migration. */
interface Census {
  readonly relations: ReadonlyMap<string, Relation>
  readonly problems: readonly string[]
}

/** SQL: the namespace `n` is not one of PostgreSQL's own, such as those of temporary tables. */
const ownNamespace = `n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'`

const relations = `
  SELECT n.nspname AS schema, c.relname AS relation,
    CASE c.relkind WHEN 'S' THEN 'sequence ' WHEN 'v' THEN 'view ' WHEN 'm' THEN 'materialized view ' ELSE 'table ' END
      || c.oid::regclass AS name,
    (SELECT coalesce(string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull), ', ' ORDER BY a.attnum), '')
     FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND ${ownNamespace}`

async function censusOf(client: pg.Client): Promise<Census> {
  const { rows } = await client.query<Relation>(relations)
  return {
    relations: new Map(rows.map((row) => [row.name, row])),
    problems: await rowSecurityProblems({
      query: async <Row extends object>({ text }: { text: string }) => (await client.query<Row>(text)).rows,
    }),
  }
}

/** What a migration of `plugin` did outside its names or against row security, as sentences. */
function trespasses(plugin: string, before: Census, after: Census): string[] {
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
    // Problems from before are not this migration's fault, for example the view of an extension that an operator installed.
    ...after.problems.filter((problem) => !before.problems.includes(problem)),
  ]
}

/**
 * Tables that every transaction sees: the tenants and the processes, the tenants with a queue or with an app account to renew, the
 * applied migrations, and nonces and limits from before a tenant is known.
 */
const untenanted = [
  'tenants',
  'instances',
  'run_queue_tenants',
  'schema_migrations',
  'plugin_migrations',
  'app_due_tenants',
  'kv_memory',
  'kv_claims',
  'kv_windows',
]

// The policy expression of our migrations, as PostgreSQL writes it back. It is compared as a whole, because `... OR true` names the same setting.
const tenantOnly = `(tenant_id = NULLIF(current_setting('app.tenant_id'::text, true), ''::text))`
const hashOnly =
  /^\((\w+) = decode\(NULLIF\(current_setting\('app\.auth_hash'::text, true\), ''::text\), 'hex'::text\)\)$/

interface Policy {
  readonly name: string
  readonly command: string
  readonly permissive: boolean
  readonly using: string | null
  readonly check: string | null
}

interface Table {
  readonly name: string
  readonly tenant_not_null: boolean
  readonly enabled: boolean
  readonly forced: boolean
  readonly policies: readonly Policy[]
  readonly uniques: readonly { readonly name: string; readonly primary: boolean; readonly columns: readonly string[] }[]
  readonly references: readonly { readonly name: string; readonly target: string; readonly pairs: readonly string[] }[]
}

/** The schema of pg-boss is exempt, because its tables hold no tenant data: jobs say what to do, never with which data. */
const exempt = `n.nspname <> 'pgboss'`

const tables = `
  SELECT c.oid::regclass::text AS name, c.relrowsecurity AS enabled, c.relforcerowsecurity AS forced,
    EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND a.attnotnull) AS tenant_not_null,
    coalesce((SELECT jsonb_agg(jsonb_build_object('name', p.polname, 'command', p.polcmd, 'permissive', p.polpermissive,
        'using', pg_get_expr(p.polqual, c.oid), 'check', pg_get_expr(p.polwithcheck, c.oid)))
      FROM pg_policy p WHERE p.polrelid = c.oid), '[]') AS policies,
    coalesce((SELECT jsonb_agg(jsonb_build_object('name', i.indexrelid::regclass::text, 'primary', i.indisprimary,
        'columns', (SELECT coalesce(jsonb_agg(a.attname), '[]') FROM pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey::int2[]))))
      FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique), '[]') AS uniques,
    coalesce((SELECT jsonb_agg(jsonb_build_object('name', k.conname, 'target', k.confrelid::regclass::text,
        'pairs', (SELECT jsonb_agg(own.attname || '=' || other.attname)
                  FROM unnest(k.conkey, k.confkey) AS pair (own, other)
                  JOIN pg_attribute own ON own.attrelid = k.conrelid AND own.attnum = pair.own
                  JOIN pg_attribute other ON other.attrelid = k.confrelid AND other.attnum = pair.other)))
      FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'f'), '[]') AS references
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p') AND ${ownNamespace} AND ${exempt}
  ORDER BY 1`

// Objects that read rows with the rights of another role, and so bypass row security.
const bypasses = `
  SELECT CASE c.relkind WHEN 'm' THEN 'materialized view ' WHEN 'f' THEN 'foreign table ' ELSE 'view ' END || c.oid::regclass ||
    CASE c.relkind WHEN 'v' THEN ' is not WITH (security_invoker = true)' ELSE ' has no row security' END AS problem
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE ${ownNamespace} AND (c.relkind IN ('m', 'f')
    OR (c.relkind = 'v' AND NOT coalesce(c.reloptions, '{}') && ARRAY['security_invoker=true', 'security_invoker=on', 'security_invoker=1']))
  UNION ALL
  SELECT 'function ' || p.oid::regproc || ' is SECURITY DEFINER'
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.prosecdef AND ${ownNamespace}
  ORDER BY 1`

/** Sentences about everything in the schema that would show a tenant's rows to another tenant. Empty when row security is complete. */
export async function rowSecurityProblems(tx: Pick<SystemTx, 'query'>): Promise<string[]> {
  const found = await tx.query<Table>({ text: tables })
  const others = await tx.query<{ problem: string }>({ text: bypasses })
  return [
    ...found.filter((table) => !untenanted.includes(table.name)).flatMap(tableProblems),
    ...others.map((o) => o.problem),
  ]
}

function tableProblems(table: Table): string[] {
  const problems: string[] = []
  const { policies, uniques } = table
  if (!table.tenant_not_null) problems.push('has no tenant_id NOT NULL')
  if (!table.enabled) problems.push('has row security not ENABLEd')
  if (!table.forced) problems.push('has row security not FORCEd, so its owner, which is us, sees all rows')
  if (!policies.some(isTenantPolicy)) problems.push('has no policy for the tenant with USING and WITH CHECK')
  for (const policy of policies) {
    // A restrictive policy can only remove rows. A permissive policy adds rows, so it must be the tenant's or the one of a known hash.
    if (policy.permissive && !isTenantPolicy(policy) && lookupColumn(policy) === undefined) {
      problems.push(`has the policy ${policy.name}, which shows more than the tenant's rows`)
    }
  }
  if (!uniques.some((unique) => unique.primary)) problems.push('has no primary key')
  const hashes = policies.map(lookupColumn)
  for (const { name, columns } of uniques) {
    // The hash of a 256-bit token belongs to a single tenant, and no tenant can probe for another's hash.
    const hashAlone = columns.length === 1 && hashes.includes(columns[0])
    if (!columns.includes('tenant_id') && !hashAlone) problems.push(`is unique by ${name} without tenant_id`)
  }
  for (const { name, target, pairs } of table.references) {
    if (!untenanted.includes(target) && !pairs.includes('tenant_id=tenant_id')) {
      problems.push(`refers to ${target} by ${name} without tenant_id, and foreign keys do not obey row security`)
    }
  }
  return problems.map((problem) => `table ${table.name} ${problem}`)
}

const isTenantPolicy = (policy: Policy): boolean =>
  policy.permissive && policy.command === '*' && policy.using === tenantOnly && policy.check === tenantOnly

/** The column of a policy `FOR SELECT` that shows the row whose hash the caller knows. Authentication finds the tenant this way. */
const lookupColumn = (policy: Policy): string | undefined =>
  policy.command === 'r' ? hashOnly.exec(policy.using ?? '')?.[1] : undefined
