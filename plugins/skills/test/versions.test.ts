import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Statement } from '#contracts/database'
import { blocksAnother, freshDatabase } from '#testing'
import { PostgresSkillStore } from '../postgres.ts'
import { sweepTenants } from '../sweep.ts'
import { skillText, startSkills } from './server.ts'

const profile = (name: string, skills: string[]): Statement => ({
  text: `INSERT INTO profiles (tenant_id, name, id, document) VALUES ('acme', $1, $1, $2)`,
  values: [name, JSON.stringify({ skills })],
})

test('a skill that changes raises the revision of the profiles that name it, and of no others', async (t) => {
  const { call, upload, database } = await startSkills(t, { dsn: await freshDatabase(t) })
  const note = { name: 'notes', description: 'd', body: 'one' }
  await call('POST', '/api/skills', note)
  await database.batch('acme', [
    profile('with', ['notes']),
    profile('tools', ['using-*']),
    profile('without', ['other']),
  ])
  const changes = async (): Promise<string[]> => {
    const [rows] = await database.batch<[{ key: string; newest: boolean }[]]>('acme', [
      {
        text: `SELECT c.key, c.revision = t.broadcast_revision AS newest FROM broadcast_changes c JOIN tenants t ON t.id = c.tenant_id ORDER BY c.revision`,
      },
    ])
    assert.equal(rows.at(-1)!.newest, true)
    return rows.map(({ key }) => key)
  }
  assert.deepEqual(await changes(), ['with', 'tools', 'without'])
  await call('DELETE', '/api/skills/notes')
  assert.deepEqual(await changes(), ['tools', 'without', 'with'])
  await call('DELETE', '/api/skills/using-shell')
  assert.deepEqual(await changes(), ['without', 'with', 'tools'])
  const { stagingId } = (await upload({ 'notes/SKILL.md': skillText('notes') })).json()
  await call('POST', `/api/skills/import/${stagingId}/commit`)
  const again = (await upload({ 'notes/SKILL.md': skillText('notes', 'license: MIT\n') })).json()
  await call('POST', `/api/skills/import/${again.stagingId}/commit`)
  const [[tenant]] = await database.batch<[{ broadcast_revision: number }[]]>('acme', [
    { text: `SELECT broadcast_revision FROM tenants WHERE id = 'acme'` },
  ])
  assert.equal(tenant!.broadcast_revision, 3 + 4, 'for each profile and each change of a skill that it names')
  await call('POST', '/api/skills', { ...note, name: 'unnamed' })
  assert.deepEqual(await changes(), ['without', 'tools', 'with'])

  const names = (...skills: string[]): Statement => ({
    text: `UPDATE profiles SET document = $1 WHERE name = 'with'`,
    values: [JSON.stringify({ skills })],
  })
  await database.batch('acme', [names('unnamed', 'notes', 'unnamed')])
  await call('DELETE', '/api/skills/unnamed')
  assert.equal((await changes()).at(-1), 'with')
  await database.batch('acme', [names(), names('notes'), { text: `DELETE FROM profiles WHERE name = 'with'` }])
  const before = await changes()
  await call('DELETE', '/api/skills/notes')
  assert.deepEqual(await changes(), before, 'who names it no more, or is gone, has not changed')
})

test('a write of a skill reads the profiles that name it, however many others there are, and counts them at once', async (t) => {
  const { call, database } = await startSkills(t, { dsn: await freshDatabase(t) })
  await call('POST', '/api/skills', { name: 'notes', description: 'd', body: 'one' })
  await database.batch('acme', [
    {
      text: `INSERT INTO profiles (tenant_id, name, id, document)
             SELECT 'acme', 'p' || n, 'p' || n, jsonb_build_object('skills', jsonb_build_array(CASE WHEN n <= 20 THEN 'notes' ELSE 'other' END))
             FROM generate_series(1, 1000) n`,
    },
  ])
  const counts: Statement = {
    text: `SELECT sum(CASE WHEN relname = 'profiles' THEN seq_tup_read + idx_tup_fetch END)::int AS profiles,
                  sum(CASE WHEN relname = 'profile_skills' THEN seq_tup_read + idx_tup_fetch END)::int AS names,
                  sum(CASE WHEN relname = 'tenants' THEN n_tup_upd END)::int AS tenants
           FROM pg_stat_xact_user_tables`,
  }
  type Counts = Record<'profiles' | 'names' | 'tenants', number>
  const [[before], , [after], [told]] = await database.batch<[Counts[], object[], Counts[], { count: number }[]]>(
    'acme',
    [
      counts,
      { text: `DELETE FROM skills WHERE name = 'notes'` },
      counts,
      {
        text: `SELECT count(*)::int FROM broadcast_changes c, tenants t
               WHERE c.revision > t.broadcast_revision - 20 AND t.id = 'acme'`,
      },
    ],
  )
  const reads = (of: keyof Counts): number => after![of] - before![of]
  assert.deepEqual([reads('profiles'), reads('names'), reads('tenants'), told!.count], [0, 20, 1, 20])
})

test('what nobody needs any more goes: imports that expired, and versions of no name, import or living session', async (t) => {
  const { call, upload, database, skills } = await startSkills(t, { dsn: await freshDatabase(t) })
  const stage = async (body: string): Promise<string> =>
    (await upload({ 'pdf/SKILL.md': skillText('pdf', '', body) })).json().stagingId
  const put = async (body: string): Promise<string> =>
    (await call('POST', `/api/skills/import/${await stage(body)}/commit`)).json().digest
  const pinned = await put('pinned')
  const lost = await put('lost')
  const now = await put('now')
  const waiting = await stage('waiting')
  const session = (id: string, snapshot: object): Statement => ({
    text: `INSERT INTO sessions (tenant_id, id, profile, runtime, profile_snapshot, status) VALUES ('acme', $1, 'p', 'general', $2, 'idle')`,
    values: [id, JSON.stringify(snapshot)],
  })
  const pinnedSkills = [{ name: 'pdf', digest: pinned }]
  await database.batch('acme', [session('s1', { pinnedSkills }), session('s2', { pinnedSkills }), session('s3', {})])
  const store = new PostgresSkillStore(database)
  const sweep = () => sweepTenants(database, store, new AbortController().signal)
  const there = async () =>
    Promise.all([pinned, lost, now].map(async (digest) => (await skills.content('acme', digest)) !== undefined))
  await sweep()
  assert.deepEqual(await there(), [true, false, true])
  await database.batch('acme', [
    { text: `UPDATE sessions SET status = 'shutdown' WHERE id = 's1'` },
    { text: `DELETE FROM sessions WHERE id = 's2'` },
    { text: `UPDATE skill_stagings SET expires_at = now()` },
  ])
  await sweep()
  assert.deepEqual(await there(), [false, false, true])
  assert.equal((await call('POST', `/api/skills/import/${waiting}/commit`)).statusCode, 404)
  const [rows] = await database.batch<[{ digest: string }[]]>('acme', [
    { text: `SELECT digest FROM skill_contents WHERE manifest ->> 'name' = 'pdf'` },
  ])
  assert.deepEqual(rows, [{ digest: now }])
})

test('a legal hold keeps versions that were replaced and imports that expired, however many there are, until it is lifted', async (t) => {
  const { call, upload, database } = await startSkills(t, { dsn: await freshDatabase(t) })
  const stage = async (body: string): Promise<string> =>
    (await upload({ 'pdf/SKILL.md': skillText('pdf', '', body) })).json().stagingId
  const hold = (held: boolean) =>
    database.systemBatch([{ text: `UPDATE tenants SET legal_hold = $1 WHERE id = 'acme'`, values: [held] }])
  const kept = async () => {
    const [[row]] = await database.batch<[{ versions: number; imports: number }[]]>('acme', [
      {
        text: `SELECT (SELECT count(*)::int FROM skill_contents WHERE manifest ->> 'name' = 'pdf') AS versions,
                 (SELECT count(*)::int FROM skill_stagings) AS imports`,
      },
    ])
    return row
  }
  await call('GET', '/api/skills')
  await hold(true)
  for (let n = 0; n < 25; n++) await call('POST', `/api/skills/import/${await stage(`version ${n}`)}/commit`)
  const expired = await stage('expired')
  await database.batch('acme', [{ text: `UPDATE skill_stagings SET expires_at = now()` }])
  const sweep = () => sweepTenants(database, new PostgresSkillStore(database), new AbortController().signal)
  await sweep()
  assert.deepEqual(await kept(), { versions: 26, imports: 1 })
  assert.equal((await call('POST', `/api/skills/import/${expired}/commit`)).statusCode, 404)
  // Nor do newer imports push out older ones.
  for (let n = 0; n < 11; n++) await stage(`waiting ${n}`)
  assert.equal((await kept())!.imports, 12)
  await hold(false)
  await database.batch('acme', [{ text: `UPDATE skill_stagings SET expires_at = now()` }])
  await sweep()
  assert.deepEqual(await kept(), { versions: 1, imports: 0 })
})

test('a sweep that comes while a legal hold is being set waits for it, and deletes nothing', async (t) => {
  const { call, upload, database } = await startSkills(t, { dsn: await freshDatabase(t) })
  await call('GET', '/api/skills')
  await upload({ 'pdf/SKILL.md': skillText('pdf', '', 'waits') })
  await database.batch('acme', [{ text: `UPDATE skill_stagings SET expires_at = now()` }])
  const store = new PostgresSkillStore(database)
  let sweep: Promise<number> | undefined
  await database.tenant('acme', async (tx) => {
    await tx.query({ text: `UPDATE tenants SET legal_hold = true WHERE id = 'acme'` })
    sweep = store.sweep('acme')
    await Promise.race([sweep, blocksAnother(tx)])
  })
  assert.equal(await sweep, 0)
})

test('an import is committed at another conductor than it came to, and what was deleted there leaves the platform its place', async (t) => {
  const dsn = await freshDatabase(t)
  const [here, there] = [await startSkills(t, { dsn }), await startSkills(t, { dsn })]
  for (const { call } of [here, there]) await call('GET', '/api/skills')
  const { stagingId } = (await here.upload({ 'using-shell/SKILL.md': skillText('using-shell') })).json()
  assert.equal((await there.call('POST', `/api/skills/import/${stagingId}/commit`)).statusCode, 201)
  assert.equal((await here.call('GET', '/api/skills/using-shell')).json().source, 'imported')
  assert.equal((await here.call('DELETE', '/api/skills/using-shell')).statusCode, 204)
  assert.equal((await there.call('GET', '/api/skills/using-shell')).json().source, 'platform')
})

test('of many imports that wait only the newest can be committed, and two commits of one make one skill', async (t) => {
  const { call, upload } = await startSkills(t, { dsn: await freshDatabase(t) })
  const ids: string[] = []
  for (let i = 0; i < 11; i++)
    ids.push((await upload({ 'pdf/SKILL.md': skillText('pdf', '', String(i)) })).json().stagingId)
  const commit = async (id: string) => (await call('POST', `/api/skills/import/${id}/commit`)).statusCode
  assert.equal(await commit(ids[0]!), 404)
  assert.deepEqual((await Promise.all([commit(ids[10]!), commit(ids[10]!)])).sort(), [201, 404])
})

test('what profiles need of skills is read without the descriptions of their files', async (t) => {
  const { call, upload, database } = await startSkills(t, { dsn: await freshDatabase(t) })
  const put = async (files: Readonly<Record<string, string>>, executable: string[] = []): Promise<string> => {
    const { stagingId } = (await upload(files, 'acme', executable)).json()
    return (await call('POST', `/api/skills/import/${stagingId}/commit`)).json().digest
  }
  const tools = skillText('plain', 'allowed-tools: Read Bash\n')
  const plain = await put({ 'plain/SKILL.md': tools, 'plain/a/scripts/b': '12345' }, ['plain/SKILL.md'])
  const folder = await put({ 'folder/SKILL.md': skillText('folder'), 'folder/scripts/b': '' })
  const marked = await put({ 'marked/SKILL.md': skillText('marked'), 'marked/a': '1' }, ['marked/a'])
  const found = await new PostgresSkillStore(database).needs('acme', ['plain', 'folder', 'marked', 'none'])
  const need = (
    name: string,
    digest: string,
    totalBytes: number,
    requiresSandbox = true,
    allowedTools = [] as string[],
  ) => ({
    name,
    digest,
    allowedTools,
    totalBytes,
    requiresSandbox,
  })
  assert.deepEqual(
    [...found].sort((a, b) => (a.name < b.name ? -1 : 1)),
    [
      need('folder', folder, skillText('folder').length),
      need('marked', marked, skillText('marked').length + 1),
      need('plain', plain, tools.length + 5, false, ['Read', 'Bash']),
    ],
  )
})
