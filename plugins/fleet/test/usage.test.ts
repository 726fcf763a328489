import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { CountUse, LimitName, TenantLimits } from '#contracts/limits'
import type { Fleet, RunnerUsage } from '#contracts/runner'
import { tellUsage } from '../topology.ts'

/** What is told of the tenant `acme` on runners that answer so. */
async function told(...answers: (() => Promise<RunnerUsage | undefined>)[]) {
  const counts = new Map<LimitName, CountUse>()
  let asked = 0
  const links = answers.map((answer) => ({ usage: async () => (asked++, answer()) }))
  const fleet = {
    all: () => links,
    describe: () => links.map((_, i) => ({ state: i === 0 ? 'unreachable' : 'live' })),
  } as unknown as Fleet
  tellUsage({ uses: (limit, count) => void counts.set(limit, count) } as TenantLimits, fleet)
  const all = [...counts].map(async ([limit, count]) => [limit, await count('acme')])
  return { usage: Object.fromEntries(await Promise.all(all)) as object, asked }
}

test('of what each runner bounds a tenant has as much as where it has most; a runner that says nothing is left out', async () => {
  const away = async () => assert.fail('it is not asked')
  const { usage, asked } = await told(
    away,
    async () => ({ stateBytes: 5, sandboxes: 2, workspaceBytes: 7 }),
    async () => ({ stateBytes: 9, sandboxes: 1 }),
    async () => undefined,
    async () => Promise.reject(new Error('broken')),
  )
  assert.deepEqual(usage, { stateBytes: 9, sandboxes: 2, workspaceBytes: 7 })
  assert.equal(asked, 4, 'each once, however many limits there are')
})

test('where nobody can tell, nothing is told', async () => {
  const { usage } = await told(async () => undefined)
  assert.deepEqual(usage, { stateBytes: undefined, sandboxes: undefined, workspaceBytes: undefined })
})
