import assert from 'node:assert/strict'
import { test } from 'node:test'
import pg from 'pg'
import { freshDatabase } from '#testing'

const query = async (dsn: string, text: string): Promise<unknown[]> => {
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    return (await client.query(text)).rows
  } finally {
    await client.end()
  }
}

test('every test gets a migrated database of its own, with three tenants', async (t) => {
  const [one, other] = await Promise.all([freshDatabase(t), freshDatabase(t)])
  await query(one, `INSERT INTO tenants (id, name) VALUES ('initech', 'Initech')`)
  assert.deepEqual(await query(other, 'SELECT id FROM tenants ORDER BY id'), [
    { id: 'acme' },
    { id: 'default' },
    { id: 'globex' },
  ])
})

test('the role of a test obeys row security', async (t) => {
  const dsn = await freshDatabase(t)
  const sql = 'SELECT rolsuper OR rolbypassrls AS exempt FROM pg_roles WHERE rolname = current_user'
  assert.deepEqual(await query(dsn, sql), [{ exempt: false }])
})

test('the database is gone after its test, even when a connection was left open', async (t) => {
  let dsn = ''
  await t.test('a test that leaves a connection', async (inner) => {
    dsn = await freshDatabase(inner)
    const left = new pg.Client({ connectionString: dsn })
    left.on('error', () => {})
    await left.connect()
  })
  await assert.rejects(query(dsn, 'SELECT 1'), { code: '3D000' })
})
