import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Statement } from '#contracts/database'
import { freshDatabase } from '#testing'
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
  assert.deepEqual(await changes(), ['without', 'tools', 'with'])
  const { stagingId } = (await upload({ 'notes/SKILL.md': skillText('notes') })).json()
  await call('POST', `/api/skills/import/${stagingId}/commit`)
  const again = (await upload({ 'notes/SKILL.md': skillText('notes', 'license: MIT\n') })).json()
  await call('POST', `/api/skills/import/${again.stagingId}/commit`)
  const [[tenant]] = await database.batch<[{ broadcast_revision: number }[]]>('acme', [
    { text: `SELECT broadcast_revision FROM tenants WHERE id = 'acme'` },
  ])
  assert.equal(tenant!.broadcast_revision, 3 + 3 * 2, 'for each profile and each change')
  await call('POST', '/api/skills', { ...note, name: 'unnamed' })
  assert.deepEqual(await changes(), ['without', 'with', 'tools'])
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

test('of many imports that wait only the newest can be committed, and two commits of one make one skill', async (t) => {
  const { call, upload } = await startSkills(t, { dsn: await freshDatabase(t) })
  const ids: string[] = []
  for (let i = 0; i < 11; i++)
    ids.push((await upload({ 'pdf/SKILL.md': skillText('pdf', '', String(i)) })).json().stagingId)
  const commit = async (id: string) => (await call('POST', `/api/skills/import/${id}/commit`)).statusCode
  assert.equal(await commit(ids[0]!), 404)
  assert.deepEqual((await Promise.all([commit(ids[10]!), commit(ids[10]!)])).sort(), [201, 404])
})
