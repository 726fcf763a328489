import assert from 'node:assert/strict'
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { pino } from 'pino'
import { ErasedFiles } from '../../journal/folder.ts'
import { JournalFolder } from '../../journal/folder.ts'
import { openStores } from '../postgres/stores.ts'

test('files go with the rows of their runs, and nothing else does', async (t) => {
  const dir = await mkdtemp(join(tmpdir(), 'erased-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const { db } = await openStores(t)
  const folder = await JournalFolder.open(dir)
  for (const tenant of ['acme', 'globex', 'nobody']) {
    await mkdir(join(dir, tenant))
    for (const file of ['run_1.jsonl', 'run_1.jsonl.7.old', 'run_12.jsonl', 'run_2.jsonl'])
      await writeFile(join(dir, tenant, file), 'x')
  }
  const files = async (tenant: string): Promise<string[]> => (await readdir(join(dir, tenant)).catch(() => [])).sort()
  const erased = new ErasedFiles(db, folder, pino({ level: 'silent' }))
  const note = (id: string) =>
    db.batch('acme', [{ text: `INSERT INTO erased_runs (tenant_id, run_id) VALUES ('acme', $1)`, values: [id] }])
  // That the database does not know a run says nothing: it may be another database's.
  await erased.look()
  assert.equal((await files('acme')).length, 4)
  await note('run_1')
  await erased.look()
  assert.deepEqual(await files('acme'), ['run_12.jsonl', 'run_2.jsonl'])
  await note('run_2')
  await erased.look()
  assert.deepEqual(await files('acme'), ['run_12.jsonl'])
  await db.systemBatch([{ text: `UPDATE tenants SET deleted_at = now(), erased_at = now() WHERE id = 'globex'` }])
  await erased.look()
  assert.deepEqual([await files('globex'), (await files('nobody')).length], [[], 4])
})
