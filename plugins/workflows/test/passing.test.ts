import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Caller } from '#contracts/auth'
import { isAppError } from '#kernel'
import { mayPass } from '../passing.store.ts'
import { node, stage } from './stage.ts'

const admin = { tenantId: 'default', keyId: 'me', role: 'admin' } as Caller

test('who may pass is found without a look at each approval, and what an approval asks may have a NUL', async (t) => {
  const s = await stage(t)
  const go = { id: 'go', type: 'wait', signal: 'never' }
  const asks = (role: string) =>
    Array.from({ length: 100 }, (_, i) => ({
      id: `ask${i}`,
      type: 'approval',
      message: '\0 \\u0000 \\\0 "\\" \ud800',
      role,
      dependsOn: ['go'],
    }))
  const define = async (nodes: object[]): Promise<string> =>
    (await s.call('POST', '/api/workflows/definitions', { name: 'asks', nodes })).body.id
  const each = (workflowDefinitionId: string) => ({
    type: 'map',
    items: [1, 2, 3, 4],
    node: { type: 'workflow', workflowDefinitionId },
  })
  const owners = await define([go, ...asks('owner')])
  const id = await s.run([
    { id: 'owners', ...each(owners) },
    { id: 'admins', ...each(await define([go, ...asks('admin')])) },
    { id: 'then', type: 'wait', signal: 'never', dependsOn: ['owners'] },
    { id: 'free', type: 'wait', signal: 'never', dependsOn: ['admins'] },
    { id: 'early', type: 'workflow', workflowDefinitionId: owners, dependsOn: ['free'] },
    { id: 'late', type: 'wait', signal: 'never', dependsOn: ['early'] },
  ])
  await s.until(id, (run) => ['owners.3', 'admins.3'].every((part) => node(run, part)?.workflowRunId))
  let read = 0
  const end = (nodeId: string) =>
    s.database.tenant('default', (tx) =>
      mayPass(
        {
          ...tx,
          tenantId: tx.tenantId,
          query: async <Row>(statement: Parameters<typeof tx.query>[0]) => {
            const rows = await tx.query<Row & object>(statement)
            read += rows.length
            return rows
          },
        } as typeof tx,
        admin,
        { runId: id, nodeIds: [nodeId], passing: 'end' },
      ),
    )
  await end('free')
  await assert.rejects(end('then'), (error) => isAppError(error) && /owner.*'owners'/.test(error.message))
  await assert.rejects(end('late'), (error) => isAppError(error) && /owner.*'early'/.test(error.message))
  assert.ok(read <= 20, `${read} rows`)
})
