import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { PlatformTools } from '#contracts/tools'
import { diskStoragePlugin, entriesOf, testToolContext, testToolProvider } from '#testing'
import storage from '../index.ts'
import storageTools from '../tools/index.ts'

const plugins = async (t: TestContext) => {
  const dir = await mkdtemp(join(tmpdir(), 'ao-tools-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  return [await diskStoragePlugin(dir), storage, storageTools]
}

testToolProvider('storage', plugins, {
  calls: [
    { tool: 'storage_put', input: { key: 'a/b', content: 'hello' }, matches: /stored: 5 bytes/ },
    {
      tool: 'storage_put',
      input: { key: '../b', content: 'x' },
      ok: false,
      matches: /An object cannot have this key/,
    },
    { tool: 'storage_get', input: { key: 'none' }, ok: false, matches: /no object 'none'/ },
    { tool: 'storage_list', input: {}, matches: /^a\/b \(5 bytes/ },
    { tool: 'storage_delete', input: { key: 'none' }, ok: false, matches: /no object/ },
  ],
})

test('storage: what an agent puts, agents of its tenant get, list and delete, and nobody else', async (t) => {
  const tools = await entriesOf(t, PlatformTools, await plugins(t))
  const call = (name: string, input: object, tenantId = 'acme') =>
    tools
      .get(`storage_${name}`)!
      .execute({ offset: 0, prefix: '', after: '', contentType: 'text/plain', ...input }, testToolContext({ tenantId }))
  const long = `${'é'.repeat(200_000)}!`
  await call('put', { key: 'long', content: long })
  let read = ''
  for (let offset = 0; ;) {
    const { content } = await call('get', { key: 'long', offset })
    const [, text = content, next] = /^([^]*)\n\[Bytes .*offset (\d+)\.\]$/.exec(content) ?? []
    read += text
    if (next === undefined) break
    offset = Number(next)
  }
  assert.ok(read === long)
  assert.match((await call('list', { prefix: 'lo' })).content, /^long \(400001 bytes, text\/plain, /)
  await assert.rejects(call('put', { key: 'long', content: 'x', overwrite: false }), { code: 'precondition_failed' })
  assert.equal((await call('get', { key: 'long' }, 'globex')).ok, false)
  assert.equal((await call('delete', { key: 'long' }, 'globex')).ok, false)
  assert.equal((await call('delete', { key: 'long' })).ok, true)
})

test('storage: a runner without a store has no tools of it', async (t) => {
  assert.equal((await entriesOf(t, PlatformTools, [storage, storageTools])).size, 0)
})
