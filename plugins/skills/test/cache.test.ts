import assert from 'node:assert/strict'
import { test } from 'node:test'
import { digestOf, mostAttachedBytes, type SkillContent } from '#contracts/skills'
import { testToolProvider } from '#testing'
import plugin from '../runner/index.ts'
import { SkillVersions } from '../runner/index.ts'

function skill(name: string, bytes: number): SkillContent {
  const files = [{ path: 'SKILL.md', bytes: Buffer.alloc(bytes, name), executable: false }]
  return { name, description: '', body: '', files, digest: digestOf(files) }
}

test('versions are kept by tenant and digest, and only when they are what the digest says', () => {
  const cache = new SkillVersions(1_000)
  const one = skill('a', 10)
  cache.put('acme', one)
  cache.put('acme', one)
  assert.equal(cache.bytes, 10)
  assert.deepEqual(cache.take('acme', [one, skill('b', 10)]), [one, undefined])
  assert.deepEqual(cache.take('globex', [one]), [undefined])
  const forged = { ...one, files: [{ ...one.files[0]!, bytes: Buffer.from('other') }] }
  assert.throws(() => cache.put('acme', forged), { code: 'skill_corrupt', status: 400 })
})

test('beyond its room those that rest longest go, and none that was just brought', (t) => {
  t.mock.timers.enable({ apis: ['Date'] })
  const cache = new SkillVersions(100)
  const [a, b, c, d] = ['a', 'b', 'c', 'd'].map((name) => skill(name, 50)) as [
    SkillContent,
    SkillContent,
    SkillContent,
    SkillContent,
  ]
  for (const one of [a, b, c]) cache.put('acme', one)
  assert.equal(cache.bytes, 150, 'a run with all three can begin')
  t.mock.timers.tick(31_000)
  cache.take('acme', [a])
  cache.put('acme', d)
  const there = cache.take('acme', [a, b, c, d]).map((one) => one?.name)
  assert.deepEqual(there, ['a', undefined, undefined, 'd'])
  assert.equal(cache.bytes, 100)
})

test('a tenant that brings much at once loses its own, and not those of others', () => {
  const cache = new SkillVersions(100)
  const theirs = skill('theirs', 50)
  cache.put('globex', theirs)
  const half = mostAttachedBytes / 2
  const [a, b, c] = [skill('a', half), skill('b', half), skill('c', half)]
  for (const one of [a, b, c]) cache.put('acme', one)
  assert.deepEqual(
    cache.take('acme', [a, b, c]).map((one) => one?.name),
    [undefined, 'b', 'c'],
  )
  assert.deepEqual(cache.take('globex', [theirs]), [theirs])
  assert.equal(cache.bytes, 50 + 2 * half)
})

testToolProvider('skills', () => [plugin], {
  calls: [
    { tool: 'skill_read', input: { name: 'none' }, ok: false, matches: /it has: none/ },
    { tool: 'skill_resource', input: { name: 'none', path: 'a' }, ok: false, matches: /it has: none/ },
  ],
})
