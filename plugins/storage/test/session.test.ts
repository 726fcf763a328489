import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { definePlugin } from '#kernel'
import { ReservedObjects } from '#contracts/linked-objects'
import type { ObjectStore } from '#contracts/object-store'
import { type RunnerSession, RunnerSessions } from '#contracts/runner'
import { WorkerHub, workerTokenErrors } from '#contracts/workers'
import { diskStoragePlugin, fake, testKernel } from '#testing'
import files from '../session/index.ts'
import storage from '../index.ts'

const key = 'a'.repeat(64)

test('linked contents are for whoever shows the token of a run or worker of their tenant, and only there', async (t) => {
  const dir = await mkdtemp(join(tmpdir(), 'ao-session-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const sessions = new Map(
    [
      ['acme', 's1', 'static'],
      ['globex', 's2', 'static'],
      ['acme', 's3', 'sandbox'],
    ].map(([tenantId, id, workerMode]) => [id, { id, tenantId, profile: { workerMode } } as unknown as RunnerSession]),
  )
  const stores: ObjectStore[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { reserved: ReservedObjects },
    setup: async ({ deps }) => (stores.push(deps.reserved), {}),
  })
  const kernel = await testKernel(
    t,
    [
      fake(RunnerSessions, {
        get: (id: string) => sessions.get(id),
        admits: ({ id }: RunnerSession, shown?: string) => shown === `Bearer run-of-${id}`,
      } as unknown as RunnerSessions),
      fake(WorkerHub, {
        async authorize(shown, tenantId, sessionId) {
          if (shown !== `Bearer worker-of-${tenantId}-${sessionId}`) throw workerTokenErrors.otherSession()
        },
      }),
      await diskStoragePlugin(dir),
      { name: 'storage', plugin: storage },
      { name: 'session-files', plugin: files },
      probe,
    ],
    { listeners: ['runner', 'workers'] },
  )
  const body = (async function* () {
    yield Buffer.from('content of acme')
  })()
  await stores[0]!.put('acme', key, { body, contentType: 'image/png' })
  const get = async (listener: string, session: string, token?: string, wanted = key) => {
    const { statusCode, body: text } = await kernel.listeners[listener]!.inject({
      method: 'GET',
      url: `/runner/sessions/${session}/files/${wanted}`,
      headers: token === undefined ? {} : { authorization: `Bearer ${token}` },
    })
    return statusCode === 200 ? text : statusCode
  }
  assert.equal(await get('runner', 's1', 'run-of-s1'), 'content of acme')
  for (const token of [undefined, 'run-of-s2', 'worker-of-acme-s1']) assert.equal(await get('runner', 's1', token), 401)
  assert.equal(await get('runner', 'nobody', 'run-of-nobody'), 401)
  // A content of another tenant is answered like an unknown one.
  assert.equal(await get('runner', 's2', 'run-of-s2'), 404)
  for (const wanted of ['b'.repeat(64), '..%2f..', 'A', '%2e%2e', `${key}x`.toUpperCase()])
    assert.equal(await get('runner', 's1', 'run-of-s1', wanted), 404, wanted)
  // A session in a sandbox sends its worker's token, on either listener. Other sessions are not served on the listener of workers.
  assert.equal(await get('workers', 's3', 'worker-of-acme-s3'), 'content of acme')
  assert.equal(await get('runner', 's3', 'worker-of-acme-s3'), 'content of acme')
  assert.equal(await get('runner', 's3', 'run-of-s3'), 401)
  assert.equal(await get('workers', 's1', 'run-of-s1'), 401)
})
