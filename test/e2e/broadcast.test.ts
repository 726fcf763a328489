import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Cluster, eventually, forms, startCluster } from './cluster.ts'

async function onRunner<T>(cluster: Cluster, path: string): Promise<T> {
  const reply = await fetch(`${cluster.runnerUrl}${path}`, { headers: { 'x-tenant-id': 'default' } })
  return (await reply.json()) as T
}
const namesOn = async (cluster: Cluster): Promise<string[]> =>
  (await onRunner<{ name: string; version: number }[]>(cluster, '/runner/profiles')).map(
    ({ name, version }) => `${name}@${version}`,
  )

for (const form of forms) {
  test(`${form}: sessions of a profile are placed in its pool, and runners know profiles and pools`, async (t) => {
    const cluster = await startCluster(t, form, { apart: ['runner'] })
    const { hash } = await onRunner<{ hash: string }>(cluster, '/runner/info')
    const pool = async (name: string, body: object): Promise<string> =>
      (await cluster.api<{ id: string }>('POST', '/api/pools', { name, ...body })).body.id
    const here = await pool('here', { runners: [hash] })
    const elsewhere = await pool('elsewhere', { runners: ['00000000'] })
    await cluster.api('POST', '/api/profiles', { name: 'p', model: 'openai/stand-in', pool: 'elsewhere' })
    const run = () => cluster.api<{ error?: string }>('POST', '/api/runs', { profile: 'p', prompt: 'hi' })
    const none = await run()
    assert.deepEqual([none.status, none.body.error], [503, 'no_runner'])
    await cluster.api('PUT', '/api/profiles/p', { model: 'openai/stand-in', pool: 'here' })
    assert.equal((await run()).status, 202)
    assert.deepEqual(await namesOn(cluster), ['p@2'])
    const kept = await onRunner<{ id: string }[]>(cluster, '/runner/pools')
    assert.deepEqual(kept.map(({ id }) => id).toSorted(), [here, elsewhere].toSorted())
    assert.equal((await cluster.api('DELETE', `/api/pools/${here}`)).status, 409)
    assert.equal((await cluster.api('DELETE', `/api/pools/${elsewhere}`)).status, 204)
    assert.equal((await onRunner<object[]>(cluster, '/runner/pools')).length, 1)

    // In the single form the runner lives and dies with its conductor, and its memory with both.
    await cluster.api('POST', '/api/profiles', { name: 'gone' })
    await cluster.kill('runner')
    if (form === 'four') {
      await cluster.api('DELETE', '/api/profiles/gone')
      await cluster.api('PUT', '/api/profiles/p', { pool: 'here' })
      await cluster.api('POST', '/api/profiles', { name: 'new' })
    }
    await cluster.start('runner')
    const newest = form === 'four' ? 'new@1,p@3' : 'gone@1,p@2'
    await eventually('the runner has the newest', async () => (await namesOn(cluster)).join() === newest)
    assert.equal((await onRunner<object[]>(cluster, '/runner/pools')).length, 1)
  })
}
