import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { freshDatabase } from '#testing'
import { emptyFolder, run } from './spawned.ts'

const pepper = randomBytes(32).toString('base64')
const owner = ['key', 'issue', '--tenant', 'default', '--role', 'owner']

test('key issue mints a key straight in the database, printed once with its id', async (t) => {
  const env = { POSTGRES_DSN: await freshDatabase(t), AGENT_API_KEY_PEPPER: pepper }
  const { code, stdout, stderr } = await run(t, [...owner, '--label', 'laptop'], env)
  assert.equal(code, 0, stderr)
  const key = JSON.parse(stdout)
  assert.match(key.token, /^ao_dev_[0-9A-Za-z]{49}$/)
  assert.match(key.id, /^tak_/)
  assert.equal(key.role, 'owner')
  assert.equal(key.label, 'laptop')
})

test('key issue for a tenant nobody knows, or without the pepper, is one sentence and exit code 1', async (t) => {
  const POSTGRES_DSN = await freshDatabase(t)
  const unknown = await run(t, ['key', 'issue', '--tenant', 'nobody', '--role', 'member'], {
    POSTGRES_DSN,
    AGENT_API_KEY_PEPPER: pepper,
  })
  assert.equal(unknown.code, 1)
  assert.match(unknown.stderr, /agent-orc: .*nobody/)
  const bare = await run(t, owner, { POSTGRES_DSN })
  assert.equal(bare.code, 1)
  assert.match(bare.stderr, /AGENT_API_KEY_PEPPER/)
  // Nothing was issued for nobody, so nobody has a log; what failed for lack of a pepper is in the tenant's.
  assert.deepEqual(await auditOf(POSTGRES_DSN, 'nobody'), [])
  assert.deepEqual(
    (await auditOf(POSTGRES_DSN, 'default')).map(({ status }) => status),
    [503],
  )
  for (const { stdout, stderr } of [unknown, bare]) {
    assert.equal(stdout, '')
    assert.doesNotMatch(stderr, /^\s+at /m)
  }
})

interface Recorded {
  readonly actor_key: string
  readonly action: string
  readonly status: number | null
  readonly target: string | null
}

async function auditOf(dsn: string, tenant: string): Promise<Recorded[]> {
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    await client.query(`SELECT set_config('app.tenant_id', $1, false)`, [tenant])
    const { rows } = await client.query<Recorded>(
      `SELECT e.actor_key, e.action, o.status, o.target
       FROM audit_entries e LEFT JOIN audit_outcomes o ON o.entry_id = e.id ORDER BY e.at`,
    )
    return rows
  } finally {
    await client.end()
  }
}

test('tenant create makes a tenant that keys can be issued for, and both are in its audit log', async (t) => {
  const env = { POSTGRES_DSN: await freshDatabase(t), AGENT_API_KEY_PEPPER: pepper }
  const created = await run(t, ['tenant', 'create', 'initech', '--name', 'Initech'], env)
  assert.equal(created.code, 0, created.stderr)
  const { id, name, deletedAt } = JSON.parse(created.stdout)
  assert.deepEqual([id, name, deletedAt], ['initech', 'Initech', null])
  const issued = await run(t, ['key', 'issue', '--tenant', 'initech', '--role', 'admin'], env)
  assert.equal(issued.code, 0, issued.stderr)
  const again = await run(t, ['tenant', 'create', 'initech'], env)
  assert.equal(again.code, 1)
  assert.match(again.stderr, /^agent-orc: There is a tenant 'initech' already\.\n$/)
  const create = { actor_key: 'agent-orc tenant create', action: 'tenants.create' }
  assert.deepEqual(await auditOf(env.POSTGRES_DSN, 'initech'), [
    { ...create, status: 201, target: 'initech' },
    { actor_key: 'agent-orc key issue', action: 'api-keys.create', status: 201, target: JSON.parse(issued.stdout).id },
    { ...create, status: 409, target: null },
  ])
})

test('migrate may run again, and without a database says which variable names one', async (t) => {
  const POSTGRES_DSN = await freshDatabase(t)
  const again = await run(t, ['migrate'], { POSTGRES_DSN })
  assert.equal(again.code, 0, again.stderr)
  assert.deepEqual(JSON.parse(again.stdout), { migrated: true })
  const none = await run(t, ['migrate'])
  assert.equal(none.code, 1)
  assert.match(none.stderr, /POSTGRES_DSN/)
})

test('migrate --config applies the migrations of the plugins of that role too, and sets none of them up', async (t) => {
  const POSTGRES_DSN = await freshDatabase(t)
  const folder = await emptyFolder(t)
  const notes = fileURLToPath(new URL('../../examples/notes', import.meta.url))
  const role = join(folder, 'role.yaml')
  // Without the guard that the plugin needs: to migrate, nothing of it has to work.
  await writeFile(
    role,
    `role: mine\nplugins:\n  database: { dsn: '\${POSTGRES_DSN}' }\n  my-notes: { use: ${notes} }\n`,
  )
  const migrated = await run(t, ['migrate', '--config', role], { POSTGRES_DSN })
  assert.equal(migrated.code, 0, migrated.stderr)
  const client = new pg.Client({ connectionString: POSTGRES_DSN })
  await client.connect()
  try {
    const { rows } = await client.query('SELECT plugin, name FROM plugin_migrations')
    assert.deepEqual(rows, [{ plugin: 'notes', name: 'notes/0001_notes' }])
    await client.query('SELECT FROM notes')
  } finally {
    await client.end()
  }
})
