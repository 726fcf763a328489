import assert from 'node:assert/strict'
import { after, before, describe, test, type TestContext } from 'node:test'
import { newObject, testObjectBackend } from '#testing'
import { S3Backend } from '../backend.ts'
import { S3Client } from '../client.ts'
import { startSwift, type Swift, whyNoSwift } from './swift.ts'
import { backendFor, keyBytes } from './support.ts'

// A server of S3 that others run in production. Where it is not installed its tests are skipped; with CI=true that is a failure.
const skip = process.env['CI'] === 'true' ? undefined : await whyNoSwift()

describe('against OpenStack Swift', { skip: skip ?? false }, () => {
  let swift: Swift | undefined
  before(async () => {
    swift = await startSwift()
    const client = new S3Client({ ...swift.settings, bucket: 'objects' })
    await (await client.send({ method: 'PUT', key: '' })).body.dump()
    await client.close()
  })
  after(() => swift?.stop())
  const store = async (t: TestContext, more: { bucket?: string; secretAccessKey?: string } = {}) =>
    (await backendFor(t, { ...swift!.settings, bucket: 'objects', ...more })).store
  testObjectBackend('swift', store, { keyBytes })

  test('a server that knows no conditions of writes has them kept here, for large objects as well', async (t) => {
    const objects = await store(t)
    const large = newObject(Buffer.alloc(8 * 1024 * 1024, 'x'), { ifNoneMatch: '*' })
    assert.equal((await objects.put('acme', 'k', large)).info.bytes, 8 * 1024 * 1024)
    const put = () =>
      objects.put('acme', 'new', newObject('y', { ifNoneMatch: '*' })).then(
        () => 'stored',
        (error: { code: string }) => error.code,
      )
    const outcomes = await Promise.all([put(), put(), put(), put()])
    assert.deepEqual(outcomes.toSorted(), [
      'precondition_failed',
      'precondition_failed',
      'precondition_failed',
      'stored',
    ])
  })

  test('a key that does not fit behind the root of its tenant is refused, and none', async (t) => {
    const objects = await store(t)
    const key = 'y'.repeat(1_024)
    await assert.rejects(objects.put('acme', key, newObject('x')), {
      code: 'invalid_key',
      status: 400,
      message: /at most 9\d\d bytes/,
    })
    assert.equal(await objects.open('acme', key), undefined)
    assert.equal(await objects.remove('acme', key), undefined)
    const all = { prefix: key, after: '', limit: 1, folders: false }
    assert.deepEqual(await objects.list('acme', all), { objects: [], prefixes: [] })
  })

  test('the mark of a folder that a console has made at the root is no object', async (t) => {
    const client = new S3Client({ ...swift!.settings, bucket: 'objects' })
    t.after(() => client.close())
    const marked = new S3Backend(client, (tenantId) => `marked/${tenantId}/`, '')
    for (const key of ['', 'a']) await (await client.send({ method: 'PUT', key: `marked/acme/${key}` })).body.dump()
    for (const folders of [true, false]) {
      const { objects, next } = await marked.list('acme', { prefix: '', after: '', limit: 1, folders })
      assert.deepEqual([objects.map(({ key }) => key), next], [['a'], undefined])
    }
    assert.deepEqual(await marked.use('acme'), { bytes: 0, objects: 1 })
  })

  test('settings that it refuses are said to be wrong', async (t) => {
    await (await store(t)).verify()
    for (const [more, message] of [
      [{ bucket: 'nowhere' }, /no bucket/],
      [{ secretAccessKey: 'other' }, /refuses the key/],
    ] as const) {
      await assert.rejects((await store(t, more)).verify(), { code: 'storage_misconfigured', message })
    }
  })
})
