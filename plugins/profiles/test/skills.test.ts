import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { PlacedProfile } from '#contracts/profiles'
import { mostAttachedBytes, type SkillNeeds, type Skills } from '#contracts/skills'
import { checkSkills, pinSkills } from '../skills.ts'
import { createProfileLookup, type ProfileStore } from '../store.ts'

const skill = (name: string, needs: Partial<SkillNeeds> = {}): SkillNeeds => ({
  name,
  digest: name.padEnd(64, '0'),
  allowedTools: [],
  requiresSandbox: false,
  totalBytes: 1,
  ...needs,
})
const half = mostAttachedBytes / 2
const there = [
  skill('plain'),
  skill('scripted', { requiresSandbox: true }),
  skill('browsing', { allowedTools: ['http_fetch', 'mcp__files__read', 'skill_read'] }),
  skill('large', { totalBytes: half }),
  skill('larger', { totalBytes: half + 1 }),
]
const catalogue: Skills = {
  attached: async (_tenant: string, { skills }: { skills: readonly string[] }) => ({
    found: there.filter(({ name }) => skills.includes(name)),
    missing: skills.filter((name) => !there.some((one) => one.name === name)),
  }),
  content: async () => undefined,
  onOthers() {},
}

const bare = { tools: [], mcpServers: [], workerMode: 'static' as const }
const refusals: [object, object | undefined][] = [
  [{ skills: ['plain', 'large'] }, undefined],
  [{ skills: ['plain', 'gone'] }, { code: 'unknown_skill: gone', status: 400 }],
  [{ skills: ['scripted'] }, { code: 'skill_needs_sandbox: scripted', status: 400 }],
  [{ skills: ['scripted'], workerMode: 'sandbox' }, undefined],
  [
    { skills: ['browsing'] },
    { code: 'skill_needs_tools: browsing', detail: { tools: ['http_fetch', 'mcp__files__read'] } },
  ],
  [{ skills: ['browsing'], tools: ['http_fetch'], mcpServers: ['files'] }, undefined],
  [{ skills: ['large', 'larger'] }, { code: 'skills_too_large', status: 400 }],
]

for (const [profile, refusal] of refusals) {
  test(`a profile with ${JSON.stringify(profile)} is ${refusal ? 'refused' : 'taken'}, when it is written and when a session begins`, async () => {
    const whole = { ...bare, skills: [], ...profile }
    const placed = { profile: whole } as unknown as PlacedProfile
    if (!refusal) {
      await checkSkills(catalogue, 'acme', whole)
      const pinned = (await pinSkills(catalogue, 'acme', placed))!.profile.pinnedSkills!
      assert.deepEqual(
        pinned.map(({ name }) => name),
        whole.skills,
      )
      return
    }
    await assert.rejects(checkSkills(catalogue, 'acme', whole), refusal)
    // What was deleted since is left out of a session, and everything else is looked at again.
    if ('code' in refusal && refusal.code === 'unknown_skill: gone')
      assert.equal((await pinSkills(catalogue, 'acme', placed))!.profile.pinnedSkills!.length, 1)
    else await assert.rejects(pinSkills(catalogue, 'acme', placed), refusal)
  })
}

test('what using-* stood for is looked up again when it stands for others, also while it is looked up', async () => {
  let reads = 0
  let meanwhile = (): void => {}
  let others = (): void => {}
  const store = {
    async findPlaced(_tenant: string, name: string) {
      reads++
      meanwhile()
      return { profile: { ...bare, skills: [name] } }
    },
  } as unknown as ProfileStore
  const lookup = createProfileLookup(store, {
    attached: async () => ({ found: [skill('plain')], missing: [] }),
    content: async () => undefined,
    onOthers: (listener) => void (others = listener),
  })
  const readsOf = async (name: string): Promise<number> => {
    const before = reads
    await lookup.findPlaced('acme', name)
    return reads - before
  }
  assert.deepEqual([await readsOf('using-*'), await readsOf('using-*'), await readsOf('plain')], [1, 0, 1])
  others()
  assert.deepEqual([await readsOf('using-*'), await readsOf('using-*'), await readsOf('plain')], [1, 0, 0])
  others()
  meanwhile = others
  assert.deepEqual([await readsOf('using-*'), await readsOf('using-*')], [1, 1], 'what changed under way is not kept')
})
