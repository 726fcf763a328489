import assert from 'node:assert/strict'
import { test } from 'node:test'
import { freshDatabase } from '#testing'
import type { Fleet, FleetMember } from '#contracts/runner'
import { PlatformSkills } from '../platform.ts'
import { readSeeds } from '../seeds.ts'
import { startSkills } from './server.ts'

const names = (response: { json(): unknown }): string[] =>
  (response.json() as { name: string }[]).map(({ name }) => name)

for (const stored of [true, false]) {
  test(`${stored ? 'in PostgreSQL' : 'without a database'} a tenant has the skills of the tools that runners have, and more when more come`, async (t) => {
    const dsn = stored ? await freshDatabase(t) : undefined
    // One runner has not answered yet; the other is of a release that does not announce its tools.
    const runners: (readonly string[] | undefined)[] = [undefined, undefined]
    const { call, skills, tell } = await startSkills(t, { dsn, runners })
    const attached = async (): Promise<string[]> => {
      const { found } = await skills.attached('acme', { skills: ['using-*'], tools: ['shell', 'calculate'] })
      return found.map(({ name }) => name)
    }
    assert.deepEqual([names(await call('GET', '/api/skills')), await attached()], [[], []])
    let others = 0
    skills.onOthers(() => others++)
    runners[0] = ['calculate', 'read_file', 'write_file']
    tell()
    tell()
    assert.equal(others, 1)
    assert.deepEqual(names(await call('GET', '/api/skills')), ['using-calculate'])
    assert.deepEqual(await attached(), ['using-calculate'])
    assert.equal((await call('GET', '/api/skills/using-shell')).statusCode, 404)
    // The tools of all runners count together.
    runners[1] = ['shell', 'list_files']
    tell()
    assert.deepEqual(names(await call('GET', '/api/skills')), ['using-calculate', 'using-files', 'using-shell'])
    assert.deepEqual(await attached(), ['using-calculate', 'using-shell'])
    assert.equal((await call('DELETE', '/api/skills/using-calculate')).statusCode, 204)
    runners.push(['http_fetch'])
    tell()
    assert.deepEqual(names(await call('GET', '/api/skills')), ['using-files', 'using-http-fetch', 'using-shell'])
  })
}

test('the same tools are the same skills, so that no tenant is looked at again', async () => {
  const members: FleetMember[] = [{ tools: ['shell'] } as unknown as FleetMember]
  const read = () => readSeeds(undefined, { warn() {} })
  let news = (): void => {}
  const fleet = {
    describe: () => members,
    onLive: (listener: () => void) => ((news = listener), () => {}),
  } as unknown as Fleet
  const platform = new PlatformSkills({ read, live: false, fleet })
  news()
  const first = await platform.current()
  assert.equal(first.length, 1)
  members.push({ tools: ['shell'] } as unknown as FleetMember)
  news()
  assert.equal(await platform.current(), first)
  members.push({ tools: ['calculate'] } as unknown as FleetMember)
  news()
  assert.notEqual(await platform.current(), first)
})
