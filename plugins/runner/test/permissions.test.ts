import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { CallDecision } from '#contracts/approvals'
import type { RunnerSession } from '#contracts/runner'
import { testProfile } from '#testing'
import { Permissions, refusalOf } from '../permissions.ts'

const session = {
  tenantId: 'acme',
  id: 's',
  profile: { ...testProfile('p'), requireApproval: ['pay'] },
} as RunnerSession

/** Asks as an attempt of a run; resolves to what a call is answered, and notes under which keys people were asked. */
function attempt(decided: Record<string, CallDecision> = {}) {
  const asked: string[] = []
  const delegations = {
    call: async (_of: unknown, waiting: { readonly approval?: { readonly key: string } }) => {
      asked.push(waiting.approval!.key)
      return { ok: false, content: 'waits' }
    },
  }
  const run = { runId: 'r', permissions: new Permissions(decided), report: () => {} }
  const ask = async (input: unknown, callId: string | undefined, name = 'pay') => {
    const refused = await refusalOf(
      delegations as unknown as Parameters<typeof refusalOf>[0],
      { session, run, signal: new AbortController().signal },
      { name, input, callId },
    )
    return refused?.content ?? 'made'
  }
  return { ask, asked }
}
const approved = { approved: true }

test('an approval is for one call as it was asked for: its id is the word of whoever makes it', async () => {
  const first = attempt()
  assert.equal(await first.ask({ sum: 1, to: 'a' }, 'c1'), 'waits')
  const [key] = first.asked
  const next = attempt({ [key!]: approved })
  assert.equal(await next.ask({ sum: 1_000_000, to: 'a' }, 'c1'), 'waits', 'other arguments under an approved id')
  assert.equal(await next.ask({ to: 'a', sum: 1 }, 'c1'), 'made', 'the same, in another order')
  assert.equal(await next.ask({ sum: 1, to: 'a' }, 'c1'), 'waits', 'once more under the same id')
  assert.equal(await next.ask({}, 'c2', 'note'), 'made', 'nobody has to be asked')
  assert.equal(new Set([key, ...next.asked]).size, 3)
  // The attempt behind that goes through the same calls, and finds what was decided of each.
  const last = attempt(Object.fromEntries([key!, ...next.asked].map((one) => [one, approved])))
  for (const sum of [1_000_000, 1, 1]) assert.equal(await last.ask({ sum, to: 'a' }, 'c1'), 'made')
  assert.equal(await last.ask({ sum: 1, to: 'a' }, 'c1'), 'waits')
})

test('equal calls without ids are told apart by how many there were', async () => {
  const first = attempt()
  for (const _ of [1, 2]) assert.equal(await first.ask({ sum: 1 }, undefined), 'waits')
  const [one, two] = first.asked
  assert.notEqual(one, two)
  const next = attempt({ [one!]: approved, [two!]: { approved: false, comment: 'enough' } })
  assert.equal(await next.ask({ sum: 1 }, undefined), 'made')
  assert.match(await next.ask({ sum: 1 }, undefined), /enough/)
})
