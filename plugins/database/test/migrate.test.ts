import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import { pathToFileURL } from 'node:url'
import pg from 'pg'
import { freshDatabase } from '#testing'
import { migrate } from '../migrate.ts'
import { readMigrations } from '../migrations.ts'

/** Migrations of a test, in a directory of their own. */
async function release(t: TestContext, files: Readonly<Record<string, string>>) {
  const directory = await mkdtemp(join(tmpdir(), 'ao-migrations-'))
  t.after(() => rm(directory, { recursive: true }))
  for (const [name, sql] of Object.entries(files))
    await writeFile(join(directory, name), `-- owner: plugins/test\n${sql}`)
  return readMigrations(pathToFileURL(`${directory}/`))
}

/** A database without anything in it. */
async function emptyDatabase(t: TestContext): Promise<string> {
  const dsn = await freshDatabase(t)
  await rows(dsn, 'DROP SCHEMA public, pgboss CASCADE; CREATE SCHEMA public')
  return dsn
}

async function rows(dsn: string, text: string): Promise<unknown[]> {
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    return (await client.query(text)).rows
  } finally {
    await client.end()
  }
}

/** AGENT_ORC_BOOTS=100 tries harder. */
const boots = Number(process.env['AGENT_ORC_BOOTS'] || 10)

test('ten processes that boot at once on an empty database apply every migration once', async (t) => {
  const dsn = await emptyDatabase(t)
  const migrations = await readMigrations()
  const applied = await Promise.all(Array.from({ length: boots }, () => migrate(dsn, migrations)))
  const names = migrations.map((m) => m.name)
  assert.deepEqual(applied.flat().sort(), names)
  assert.deepEqual(
    await rows(dsn, 'SELECT name FROM schema_migrations ORDER BY number'),
    names.map((name) => ({ name })),
  )
  assert.deepEqual(await migrate(dsn), [])
})

test('migrations run in number order, one transaction each, and a failed one is taken up again', async (t) => {
  const dsn = await emptyDatabase(t)
  const first = {
    '0001_a_one.sql': 'CREATE TABLE one (n int);',
    '0002_a_two.sql': 'INSERT INTO one VALUES (2); SELECT 1/0',
  }
  await assert.rejects(
    migrate(dsn, await release(t, first)),
    /Migration 0002_a_two failed and was rolled back: division/,
  )
  assert.deepEqual(await rows(dsn, 'SELECT n FROM one'), [])
  const fixed = await release(t, {
    ...first,
    '0002_a_two.sql': 'INSERT INTO one VALUES (20)',
    '0010_a_ten.sql': 'INSERT INTO one SELECT max(n) + 1 FROM one',
  })
  assert.deepEqual(await migrate(dsn, fixed), ['0002_a_two', '0010_a_ten'])
  assert.deepEqual(await rows(dsn, 'SELECT n FROM one ORDER BY n'), [{ n: 20 }, { n: 21 }])
})

test('a migration whose file was changed after it was applied is refused; line ends do not count', async (t) => {
  const dsn = await emptyDatabase(t)
  await migrate(dsn, await release(t, { '0001_a_one.sql': 'CREATE TABLE one (n int);\n' }))
  assert.deepEqual(await migrate(dsn, await release(t, { '0001_a_one.sql': 'CREATE TABLE one (n int);\n' })), [])
  const changed = await release(t, { '0001_a_one.sql': 'CREATE TABLE one (n bigint);\n' })
  await assert.rejects(migrate(dsn, changed), /0001_a_one is not the one that this database has applied/)
  const [unix] = await release(t, { '0001_a_one.sql': 'SELECT 1;\nSELECT 2;\n' })
  const [windows] = await release(t, { '0001_a_one.sql': 'SELECT 1;\r\nSELECT 2;\r\n' })
  assert.equal(unix!.checksum, windows!.checksum)
})

test('the previous release runs on the schema of the next', async (t) => {
  const dsn = await emptyDatabase(t)
  const one = { '0001_a_one.sql': 'CREATE TABLE one (n int)' }
  await migrate(dsn, await release(t, { ...one, '0002_a_two.sql': 'CREATE TABLE two (n int)' }))
  assert.deepEqual(await migrate(dsn, await release(t, one)), [])
})

test('a migration says who owns it, by its name and first line, and has a number of its own', async (t) => {
  await assert.rejects(release(t, { 'one.sql': '' }), /not named NNNN_/)
  await assert.rejects(release(t, { '0001_a_one.sql': '', '0001_b_two.sql': '' }), /have one number/)
  const directory = await mkdtemp(join(tmpdir(), 'ao-migrations-'))
  t.after(() => rm(directory, { recursive: true }))
  await writeFile(join(directory, '0001_a_one.sql'), 'SELECT 1')
  await assert.rejects(readMigrations(pathToFileURL(`${directory}/`)), /does not begin with '-- owner/)
})
