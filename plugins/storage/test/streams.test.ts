import assert from 'node:assert/strict'
import { once } from 'node:events'
import { watch } from 'node:fs'
import { request } from 'node:http'
import { readdir, readlink } from 'node:fs/promises'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { join } from 'node:path'
import { type TestKernel, until } from '#testing'
import { startStorage } from './server.ts'

const urlOf = ({ listeners }: TestKernel): string =>
  `http://127.0.0.1:${(listeners['conductor']!.server.address() as { port: number }).port}`

test('a client that leaves in the middle of its upload leaves nothing', { timeout: 30_000 }, async (t) => {
  const { kernel, put, call, incoming, dir, used } = await startStorage(t, { listen: true })
  await put('k', 'before')
  for (const headers of [{ 'content-length': '1000000' }, { 'transfer-encoding': 'chunked' }]) {
    const changes = watch(join(dir, '.incoming'), { signal: t.signal })
    const upload = request(`${urlOf(kernel)}/api/storage/objects/k`, { method: 'PUT', headers })
    upload.on('error', () => {})
    upload.write(Buffer.alloc(100_000))
    await once(changes, 'change')
    assert.equal((await incoming()).length, 1)
    upload.destroy()
    changes.close()
    await until(async () => (await incoming()).length === 0, 'nothing of the upload is left')
  }
  assert.equal((await call('GET', '/objects/k')).json().content, 'before')
  assert.deepEqual([await used('objectBytes'), await used('objects')], [6, 1])
})

test('an upload without a length is stored; one that is too large is told so before it has sent all of it', async (t) => {
  const { kernel, call, incoming } = await startStorage(t, { listen: true })
  const send = async (chunks: number) => {
    const upload = request(`${urlOf(kernel)}/api/storage/objects/k`, { method: 'PUT' })
    upload.on('error', () => {})
    const answered = once(upload, 'response')
    for (let i = 0; i < chunks && !upload.destroyed; i++) upload.write(Buffer.alloc(64 * 1024, 'x'))
    if (chunks < 100) upload.end()
    const [response] = await answered
    const body = JSON.parse(await text(response)) as { bytes?: number; error?: string }
    upload.destroy()
    return { status: response.statusCode as number, ...body }
  }
  const stored = await send(20)
  assert.deepEqual([stored.status, stored.bytes], [201, 20 * 64 * 1024])
  const refused = await send(200)
  assert.deepEqual([refused.status, refused.error], [413, 'body_too_large'])
  assert.deepEqual(await incoming(), [])
  assert.equal(
    (await call('HEAD', '/objects/k', { headers: { accept: 'text/plain' } })).headers['content-length'],
    '1310720',
  )
})

test(
  'a reader who leaves lets go of the object',
  { timeout: 30_000, skip: process.platform !== 'linux' },
  async (t) => {
    const { kernel, put, dir } = await startStorage(t, { listen: true })
    await put('large', Buffer.alloc(8 * 1024 * 1024, 1))
    for (const accept of ['application/octet-stream', 'application/json']) {
      const download = request(`${urlOf(kernel)}/api/storage/objects/large`, { headers: { accept } }).end()
      const [response] = await once(download, 'response')
      await once(response, 'readable')
      response.destroy()
    }
    const closed = async (): Promise<boolean> => {
      const numbers = await readdir('/proc/self/fd')
      const paths = await Promise.all(numbers.map((fd) => readlink(`/proc/self/fd/${fd}`).catch(() => '')))
      return !paths.some((path) => path.startsWith(join(dir, '+acme')))
    }
    await until(closed, 'the file is closed')
  },
)
