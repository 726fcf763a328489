import assert from 'node:assert/strict'
import { test } from 'node:test'
import { asOwnHosts, startExternalServer } from '#testing'
import { serve, world } from './stage.ts'

test('tools of external MCP servers wait for people like any other', async (t) => {
  const w = await world(t)
  const made: unknown[] = []
  const bank = await startExternalServer(t, {
    look: { run: async () => 'a balance' },
    transfer: {
      input: { sum: { type: 'number' } },
      run: async (input) => (made.push(input), `receipt ${made.length}`),
    },
  })
  const env = { AGENT_ORC_MCP_ALLOW_HOSTS: asOwnHosts([bank.url]) }
  const s = await serve(t, w, env)
  assert.equal((await s.call('POST', '/api/mcp/catalog', { name: 'bank', url: bank.url })).status, 201)
  const profile = { name: 'clerk', model: 'openai/m', mcpServers: ['bank'], requireApproval: ['mcp__bank__t*'] }
  assert.equal((await s.call('POST', '/api/profiles', profile)).status, 201)
  const ask = (sum: number) => s.run('clerk', `mcp__bank__look({})\nmcp__bank__transfer({"sum":${sum}})`)
  const decide = (id: string, decision: string) => s.call('POST', `/api/approvals/${id}/resolve`, { decision })

  await t.test('an approved call is made once, and what was called before is not called again', async () => {
    const id = await ask(5)
    const [approval] = await s.waiting(id)
    assert.deepEqual([approval.tool, approval.arguments], ['mcp__bank__transfer', { sum: 5 }])
    await s.parked(id)
    assert.deepEqual([bank.calls.splice(0), made], [['look'], []])
    await decide(approval.id, 'approve')
    const run = await s.over(id)
    assert.match(run.result, /a balance.*receipt 1/)
    assert.deepEqual([bank.calls.splice(0), made.splice(0)], [['transfer'], [{ sum: 5 }]])
  })
  await t.test('a rejected one is not made', async () => {
    const id = await ask(6)
    await decide((await s.waiting(id))[0].id, 'reject')
    assert.match((await s.over(id)).result, /a balance.*was rejected by a person/)
    assert.deepEqual([bank.calls.splice(0), made], [['look'], []])
  })
  await t.test('another server makes it once, though it has never seen the run', async () => {
    const id = await ask(7)
    const [approval] = await s.waiting(id)
    await s.parked(id)
    await s.kernel.stop()
    const other = await serve(t, w, env)
    assert.equal(
      (await other.call('POST', `/api/approvals/${approval.id}/resolve`, { decision: 'approve' })).status,
      200,
    )
    assert.match((await other.over(id)).result, /a balance.*receipt 1/)
    assert.deepEqual([bank.calls.splice(0), made.splice(0)], [['look', 'transfer'], [{ sum: 7 }]])
  })
})
