import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { AppError } from '#kernel'
import type { VfsLease } from '#contracts/leases'
import type { SessionVfs } from '#contracts/session-vfs'
import type { VfsManager } from '#contracts/vfs-manager'
import { testProfile } from '#testing'
import { answer, execute, run, runnerOf, until } from './fixtures.ts'

const id = run().sessionId
const profile = testProfile('p', { tools: ['calculate'], vfs: { allowedMounts: ['data'] } })

/** A runner whose manager records what it is told. */
async function setup(t: TestContext) {
  const told: string[] = []
  const lease: VfsLease = { sessionId: id, allowedMounts: ['data'], state: 'open' }
  const held = new Set([`acme ${id}`])
  const files = {} as SessionVfs
  const manager: VfsManager = {
    of: (session) => (session.profile.vfs ? files : undefined),
    leases: (tenantId) => (tenantId === undefined || tenantId === 'acme' ? [lease] : []),
    async lease(tenantId, sessionId) {
      if (sessionId === 'sess-00000000-0000dead') throw new AppError('vfs upstream unavailable', 502)
      return held.has(`${tenantId} ${sessionId}`) ? lease : undefined
    },
    forget: (tenantId, sessionId) => void told.push(`forget ${tenantId} ${sessionId}`),
    async close(tenantId, sessionId) {
      await new Promise(setImmediate)
      told.push(`close ${tenantId} ${sessionId}`)
      if (fails.length > 0) throw fails.pop()
    },
  }
  const fails: AppError[] = []
  return { fails, f: await runnerOf(t, answer, { idleTtl: '1ms' }, undefined, false, manager), told, lease, files }
}

test('leases are listed for a tenant, and for all without one; that of one session is asked for at its server', async (t) => {
  const { f, lease } = await setup(t)
  const ask = async (url: string, tenant?: string) => {
    const reply = await f.call('GET', url, tenant === undefined ? {} : { tenant })
    return [reply.statusCode, reply.json() as unknown]
  }
  assert.deepEqual(await ask('/runner/vfs/leases'), [200, [lease]])
  assert.deepEqual(await ask('/runner/vfs/leases', ''), [200, [lease]])
  assert.deepEqual(await ask('/runner/vfs/leases', 'globex'), [200, []])
  assert.deepEqual(await ask(`/runner/sessions/${id}/vfs-lease`), [200, lease])
  const [status, body] = await ask(`/runner/sessions/${id}/vfs-lease`, 'globex')
  assert.deepEqual([status, (body as { error: string }).error], [404, 'no vfs session'])
  assert.equal((await ask('/runner/sessions/sess-00000000-0000dead/vfs-lease'))[0], 502)
  assert.deepEqual(await f.runner.vfsLeases('acme'), [lease])
  assert.deepEqual(await f.runner.vfsLease('acme', id), lease)
})

test('a session that ends closes its lease, also where this runner does not know it; one that only leaves forgets it', async (t) => {
  const { f, told, files } = await setup(t)
  await execute(f, { create: { profile } })
  assert.deepEqual(told, [], 'a run that touches no file tells nobody')
  const session = f.sessions.get(id)!
  await f.sessions.invokeTool(session, 'calculate', {}, new AbortController().signal)
  assert.equal(f.invoked[0]?.context.vfs, files)
  await f.runner.deleteSession('acme', id)
  assert.deepEqual(told.splice(0), [`close acme ${id}`, `forget acme ${id}`])
  await f.runner.deleteSession('globex', id)
  assert.deepEqual(told.splice(0), [`close globex ${id}`])
  // Without the VirtualFS there is nothing to close.
  await execute(f, { create: { profile: testProfile('p') } })
  await f.runner.deleteSession('acme', id)
  await until(() => f.forgotten.length === 2)
  assert.deepEqual(told.splice(0), [`forget acme ${id}`])

  await execute(f, { create: { profile } })
  f.runner.table.find('acme', id)!.usedAt = 0
  f.runner.table.sweep()
  assert.deepEqual(told, [`forget acme ${id}`])
})

test('the deletion of a session is answered when its files are gone, and fails while their server is not told', async (t) => {
  const { f, told, fails } = await setup(t)
  await execute(f, { create: { profile } })
  const unavailable = new AppError('vfs upstream unavailable', 502)
  fails.push(unavailable, unavailable)
  const remove = async () => (await f.call('DELETE', `/runner/sessions/${id}`)).statusCode
  assert.equal(await remove(), 502)
  assert.deepEqual(told.splice(0), [`close acme ${id}`, `forget acme ${id}`])
  assert.deepEqual([await remove(), await remove()], [502, 204])
  assert.deepEqual(told, Array(2).fill(`close acme ${id}`))
})
