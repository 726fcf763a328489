import assert from 'node:assert/strict'
import { test } from 'node:test'
import pg from 'pg'
import type { Profile } from '#contracts/profiles'
import { freshDatabase } from '#testing'
import { migrate } from '../plugins/database/migrate.ts'
import { readMigrations } from '../plugins/database/migrations.ts'
import { conductor } from '../plugins/profiles/test/conductor.ts'

test('profiles from before versions become version 1, in every tenant, and are told to runners', async (t) => {
  const dsn = await freshDatabase(t)
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  const all = await readMigrations()
  const document = {
    runtime: 'general',
    model: 'a/1',
    instructions: '',
    tools: [],
    skills: [],
    mcpServers: [],
    workerMode: 'static',
    limits: {},
    metadata: {},
  }
  try {
    await client.query('DROP SCHEMA public, pgboss CASCADE; CREATE SCHEMA public')
    await migrate(
      dsn,
      all.filter(({ number }) => number < 8),
    )
    for (const tenant of ['acme', 'globex']) {
      await client.query('INSERT INTO tenants (id, name) VALUES ($1, $1)', [tenant])
      await client.query(`SELECT set_config('app.tenant_id', $1, false)`, [tenant])
      for (const name of ['p', 'q']) {
        const insert = `INSERT INTO profiles (tenant_id, name, id, document) VALUES ($1, $2, $2, $3)`
        await client.query(insert, [tenant, name, JSON.stringify(document)])
      }
    }
    await migrate(dsn, all)
    const { rows } = await client.query('SELECT id, broadcast_revision::int FROM tenants ORDER BY id')
    assert.deepEqual(rows, [
      { id: 'acme', broadcast_revision: 2 },
      { id: 'default', broadcast_revision: 0 },
      { id: 'globex', broadcast_revision: 2 },
    ])
  } finally {
    await client.end()
  }
  const { call } = await conductor(t, { dsn })
  for (const tenant of ['acme', 'globex']) {
    const version = (await call('GET', '/api/profiles/p/versions/1', undefined, tenant)).json()
    assert.equal(version.profile.model, 'a/1')
    assert.equal('createdBy' in version, false)
    assert.equal((await call('PUT', '/api/profiles/p', {}, tenant)).json<Profile>().version, 2)
  }
})
