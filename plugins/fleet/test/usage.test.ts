import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { CountUse, LimitName, TenantLimits } from '#contracts/limits'
import type { RunnerUsage } from '#contracts/runner'
import { tellUsage } from '../topology.ts'
import { probeAll, scripted, scriptedFleet } from './scripted.ts'

/** Runners that answer so; the first one is away. */
async function fleetOf(...answers: (() => Promise<RunnerUsage | undefined>)[]) {
  const runners = answers.map((usage, i) => {
    const runner = scripted(`0000000${i}`)
    runner.away = i === 0
    return { ...runner, link: Object.assign(runner.link, { usage }) }
  })
  const fleet = scriptedFleet(...runners)
  await probeAll(fleet)
  return fleet
}

/** What is told of the tenant `acme` on runners that answer so. */
async function told(...answers: (() => Promise<RunnerUsage | undefined>)[]) {
  const counts = new Map<LimitName, CountUse>()
  let asked = 0
  const counted = answers.map((answer) => async () => (asked++, answer()))
  const limits = { uses: (limit, count) => void counts.set(limit, count) } as TenantLimits
  tellUsage(limits, await fleetOf(...counted))
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
  const { usage } = await told(
    async () => undefined,
    async () => undefined,
  )
  assert.deepEqual(usage, { stateBytes: undefined, sandboxes: undefined, workspaceBytes: undefined })
})

test('a runner that fails, is away or does not answer in time is left out', async () => {
  const fleet = await fleetOf(
    async () => assert.fail('it is not asked'),
    async () => ({ sandboxes: 1 }) as RunnerUsage,
    async () => Promise.reject(new Error('broken')),
    // This one never answers, and ignores its signal.
    () => new Promise(() => {}),
  )
  assert.deepEqual(await fleet.askAll((link) => link.usage('acme'), 20), [{ sandboxes: 1 }])
})
