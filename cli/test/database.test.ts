import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { freshDatabase } from '#testing'
import { run } from './spawned.ts'

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
  for (const { stdout, stderr } of [unknown, bare]) {
    assert.equal(stdout, '')
    assert.doesNotMatch(stderr, /^\s+at /m)
  }
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
