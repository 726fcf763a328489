import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testToolContext } from '#testing'
import type { Delegation } from '#contracts/delegation'
import { createDelegate, WaitingDelegations } from '../delegation.ts'

const task = { profile: 'writer', prompt: 'Write.' }

function staged(maxDepth = 3) {
  const delegations = new WaitingDelegations()
  const events: Record<string, unknown>[] = []
  const context = testToolContext({
    tenantId: 't',
    sessionId: 's',
    runId: 'r',
    report: (event) => void events.push(event),
  })
  return { delegations, tool: createDelegate(delegations, maxDepth), events, context }
}

test('a task waits until a conductor takes and answers it, and both are told in the log', async () => {
  const { tool, delegations, events, context } = staged()
  const result = tool.execute(task, context)
  const [waiting] = delegations.take('t', 's') as Delegation[]
  assert.deepEqual([waiting!.parentRunId, waiting!.profile, waiting!.prompt], ['r', 'writer', 'Write.'])
  assert.deepEqual(delegations.take('u', 's'), [], 'another tenant sees nothing')
  assert.equal(delegations.answer('u', 's', waiting!.id, { ok: true, content: 'forged' }), false)
  assert.equal(
    delegations.answer('t', 's', waiting!.id, { ok: true, content: 'done', status: 'ok', costCents: 2 }),
    true,
  )
  assert.deepEqual(await result, { ok: true, content: 'done' })
  const { id, runId } = waiting!
  assert.deepEqual(
    events.map(({ delegation }) => delegation),
    [
      { id, runId, profile: 'writer', state: 'started' },
      { id, runId, profile: 'writer', state: 'ended', ok: true, status: 'ok', costCents: 2 },
    ],
  )
  assert.equal(delegations.answer('t', 's', id, { ok: true, content: 'again' }), false, 'nobody waits any more')
})

test('a call that is made again asks for the same child run', async () => {
  const { tool, delegations, context } = staged()
  const stop = new AbortController()
  const first = tool.execute(task, { ...context, idempotencyKey: 'r:call_1', signal: stop.signal })
  const before = delegations.take('t', 's')[0]!
  stop.abort()
  await assert.rejects(async () => first)
  assert.deepEqual(delegations.take('t', 's'), [], 'a stopped call does not wait')
  const again = tool.execute(task, { ...context, idempotencyKey: 'r:call_1' })
  const after = delegations.take('t', 's')[0]!
  assert.deepEqual(after, before)
  delegations.answer('t', 's', after.id, { ok: false, content: 'no' })
  assert.deepEqual(await again, { ok: false, content: 'no' })
})

test('outside a run, and deeper than its runner allows, nothing is delegated; the model is told what said no', async () => {
  const { tool, delegations, context } = staged(2)
  assert.equal((await tool.execute(task, { ...context, runId: '' })).ok, false)
  const deep = await tool.execute(task, { ...context, depth: 2 })
  assert.match(deep.content, /2 delegations deep/)
  assert.match(deep.content, /delegationDepth of the runner/)
  assert.deepEqual(delegations.take('t', 's'), [])
})

test('where no conductor looks, the model is told', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { tool, context } = staged()
  const result = tool.execute(task, context)
  t.mock.timers.tick(30_000)
  assert.equal((await result).ok, false)
})
