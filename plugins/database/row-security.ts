import type { SystemTx } from '#contracts/database'

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

/** SQL: the namespace `n` is not one of PostgreSQL's own, such as those of temporary tables. */
export const ownNamespace = `n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'`

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
