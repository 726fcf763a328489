import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import { pathToFileURL } from 'node:url'
import pg from 'pg'
import { definePlugin, type Plugin } from '#kernel'
import { Database } from '#contracts/database'
import { freshDatabase, testKernel } from '#testing'
import database from '../index.ts'
import { migrate } from '../migrate.ts'
import { readMigrations, readPluginMigrations } from '../migrations.ts'

/** A table as docs/plugins.md shows it. */
const table = (name: string): string => `
  CREATE TABLE ${name} (tenant_id text NOT NULL, id text NOT NULL, PRIMARY KEY (tenant_id, id));
  ALTER TABLE ${name} ENABLE ROW LEVEL SECURITY;
  ALTER TABLE ${name} FORCE ROW LEVEL SECURITY;
  CREATE POLICY tenant ON ${name}
    USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
    WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));`

type Files = Readonly<Record<string, string>>

/** A plugin with these migrations in a folder of its own. */
async function plugin(t: TestContext, name: string, files: Files): Promise<Plugin> {
  const folder = await mkdtemp(join(tmpdir(), 'ao-plugin-'))
  t.after(() => rm(folder, { recursive: true }))
  for (const [file, sql] of Object.entries(files)) await writeFile(join(folder, file), sql)
  // Without a slash at its end, as an author may write it too.
  return definePlugin({ name, migrations: pathToFileURL(folder), setup: async () => ({}) })
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

const applyAll = async (dsn: string, ...plugins: Plugin[]): Promise<string[]> =>
  migrate(dsn, [...(await readMigrations()), ...(await readPluginMigrations(plugins))])

const boot = (t: TestContext, dsn: string, migrates: boolean, ...plugins: Plugin[]) =>
  testKernel(
    t,
    [{ name: 'database', plugin: database, config: { dsn, migrate: migrates, required: migrates } }, ...plugins],
    { listeners: [] },
  )

test('migrations of plugins are applied after ours, in the order of the plugins and their numbers, under their names', async (t) => {
  const dsn = await freshDatabase(t)
  await rows(dsn, 'DROP SCHEMA public, pgboss CASCADE; CREATE SCHEMA public')
  const zoo = await plugin(t, 'zoo', { '0001_zoo.sql': table('zoo') })
  const notes = await plugin(t, 'my-notes', {
    '0002_more.sql': 'ALTER TABLE my_notes ADD COLUMN text text',
    '0001_notes.sql': `${table('my_notes')} CREATE SCHEMA my_notes; ${table('my_notes.pages')}`,
  })
  const ours = (await readMigrations()).map(({ name }) => name)
  const theirs = ['zoo/0001_zoo', 'my-notes/0001_notes', 'my-notes/0002_more']
  assert.deepEqual(await applyAll(dsn, zoo, notes), [...ours, ...theirs])
  assert.deepEqual(await rows(dsn, 'SELECT plugin, number, name FROM plugin_migrations ORDER BY plugin, number'), [
    { plugin: 'my-notes', number: 1, name: 'my-notes/0001_notes' },
    { plugin: 'my-notes', number: 2, name: 'my-notes/0002_more' },
    { plugin: 'zoo', number: 1, name: 'zoo/0001_zoo' },
  ])
  assert.deepEqual(await applyAll(dsn, notes), [])
  // A role without the plugin leaves its tables alone, and another release of it takes up where this one ended.
  assert.deepEqual(await applyAll(dsn), [])
  const next = await plugin(t, 'zoo', { '0001_zoo.sql': table('zoo'), '0002_b.sql': 'DROP TABLE zoo' })
  assert.deepEqual(await applyAll(dsn, next), ['zoo/0002_b'])
})

test('ten processes that boot at once apply the migrations of two plugins once', async (t) => {
  const dsn = await freshDatabase(t)
  const both = [
    await plugin(t, 'one', { '0001_a.sql': table('one_a'), '0002_b.sql': table('one_b') }),
    await plugin(t, 'two', { '0001_a.sql': table('two_a'), '0002_b.sql': table('two_b') }),
  ]
  const applied = await Promise.all(
    Array.from({ length: 10 }, (_, i) => applyAll(dsn, ...(i % 2 === 0 ? both : both.toReversed()))),
  )
  assert.deepEqual(applied.flat().toSorted(), ['one/0001_a', 'one/0002_b', 'two/0001_a', 'two/0002_b'])
})

test('what a plugin may not do is refused in a sentence that names the table, and nothing of it stays', async (t) => {
  const dsn = await freshDatabase(t)
  await applyAll(dsn, await plugin(t, 'other', { '0001_other.sql': table('other_rows') }))
  const wrong: [sql: string, problem: RegExp][] = [
    ['CREATE TABLE notes (id int PRIMARY KEY)', /table notes has no tenant_id NOT NULL.*docs\/plugins\.md/],
    [table('notes').replace('FORCE', 'NO FORCE'), /table notes has row security not FORCEd/],
    [table('notes').replace(/CREATE POLICY[^]*/, ''), /table notes has no policy for the tenant/],
    [`CREATE SCHEMA notes; CREATE TABLE notes.pages (id int)`, /table notes\.pages has no tenant_id/],
    [table('pages'), /creates the table pages, but .* is named notes_… or lies in a schema notes/],
    [table('notesother'), /creates the table notesother/],
    ['CREATE VIEW notes_all AS SELECT * FROM runs', /view notes_all is not WITH \(security_invoker/],
    ['CREATE SEQUENCE numbers', /creates the sequence numbers/],
    ['ALTER TABLE runs ADD COLUMN note text', /changes or drops the table runs/],
    ['DROP TABLE other_rows', /changes or drops the table other_rows/],
    ['ALTER TABLE runs DISABLE ROW LEVEL SECURITY', /table runs has row security not ENABLEd/],
    ['CREATE POLICY all_of_them ON runs FOR SELECT USING (true)', /table runs has the policy all_of_them/],
    ['SELECT 1/0', /division by zero/],
  ]
  const state = `SELECT (SELECT count(*) FROM pg_class) AS classes, (SELECT count(*) FROM pg_policy) AS policies,
                   (SELECT json_agg(p) FROM plugin_migrations p) AS applied`
  const before = await rows(dsn, state)
  for (const [sql, problem] of wrong) {
    const notes = await plugin(t, 'notes', { '0001_notes.sql': sql })
    await assert.rejects(applyAll(dsn, notes), (error: Error) => {
      assert.match(error.message, /^Migration notes\/0001_notes (was refused and|failed and was) rolled back: /)
      assert.match(error.message, problem)
      return true
    })
    assert.deepEqual(await rows(dsn, state), before, sql)
  }
})

test('what was wrong with the database before is not blamed on a plugin', async (t) => {
  const dsn = await freshDatabase(t)
  await rows(dsn, 'CREATE VIEW of_an_extension AS SELECT 1 AS n; CREATE TABLE of_an_operator (n int)')
  const notes = await plugin(t, 'notes', { '0001_notes.sql': table('notes') })
  assert.deepEqual(await applyAll(dsn, notes), ['notes/0001_notes'])
})

test('a changed file, a name or a folder that cannot be, and one name for two plugins end the boot with a sentence', async (t) => {
  const dsn = await freshDatabase(t)
  const notes = await plugin(t, 'notes', { '0001_notes.sql': table('notes') })
  await boot(t, dsn, true, notes)
  const other = await plugin(t, 'notes', { '0001_notes.sql': `${table('notes')} -- changed` })
  await assert.rejects(boot(t, dsn, true, other), /notes\/0001_notes is not the one that this database has applied/)
  const capital = await plugin(t, 'Notes', {})
  await assert.rejects(boot(t, dsn, true, capital), /lower-case words with hyphens, .* not 'Notes'/)
  const twice = [
    { name: 'a', plugin: notes },
    { name: 'b', plugin: other },
  ].map(({ plugin }) => plugin)
  await assert.rejects(readPluginMigrations(twice), /Two plugins are named 'notes'/)
  assert.equal((await readPluginMigrations([notes, notes])).length, 1)
  const nowhere = definePlugin({ name: 'lost', migrations: new URL('file:///nowhere'), setup: async () => ({}) })
  await assert.rejects(boot(t, dsn, true, nowhere), /migrations of the plugin lost cannot be read: ENOENT/)
  const misnamed = await plugin(t, 'notes', { 'first.sql': '' })
  await assert.rejects(boot(t, dsn, true, misnamed), /plugin notes cannot be read: migrations\/first\.sql is not named/)
})

test('a process that does not migrate says which migrations of its plugins are missing, and goes on once they are there', async (t) => {
  const dsn = await freshDatabase(t)
  const notes = await plugin(t, 'notes', { '0001_notes.sql': table('notes') })
  let found: Database | undefined
  const reader = definePlugin({
    name: 'reader',
    requires: { database: Database },
    setup: async ({ deps }) => ((found = deps.database), {}),
  })
  const kernel = await boot(t, dsn, false, notes, reader)
  const said = kernel.logs.map((line) => String(line['msg']))
  assert.ok(
    said.some((msg) => /lacks migrations notes\/0001_notes: .* agent-orc migrate --config/.test(msg)),
    said.join('\n'),
  )
  await assert.rejects(found!.systemBatch([{ text: 'SELECT 1' }]), /not at the schema of this release yet/)
  await boot(t, dsn, true, notes)
  const usable = (): Promise<boolean> =>
    found!.systemBatch([{ text: 'SELECT 1' }]).then(
      () => true,
      () => false,
    )
  while (!(await usable())) await new Promise((resolve) => setImmediate(resolve))
})
