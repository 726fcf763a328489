import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { AppError, definePlugin } from '#kernel'
import type { Profile } from '#contracts/profiles'
import type { RunnerSession } from '#contracts/runner'
import { Signers } from '#contracts/signing'
import { type SessionSandbox, Toolkit, type ToolResult } from '#contracts/tools'
import type { VfsClient } from '#contracts/vfs'
import { VfsManager } from '#contracts/vfs-manager'
import { fake, testKernel, testProfile, testToolContext, testVfs, type TestVfs } from '#testing'
import toolsPlugin from '../plugins/tools/index.ts'
import { Leases } from '../plugins/vfs/runner/leases.ts'
import vfsRunner from '../plugins/vfs/runner/index.ts'

const log = { warn() {} }
const mounts = {
  files: { kind: 'objects', tenants: ['*'] },
  layered: { kind: 'objects', tenants: ['*'], prefix: 'layered/', copyOnWrite: true },
  manual: { kind: 'objects', tenants: ['*'], prefix: 'manual/', readOnly: true },
}

const sessionOf = (fields: Partial<Profile> = {}, tenantId = 'acme'): RunnerSession => ({
  id: `sess-00000000-${randomBytes(4).toString('hex')}`,
  tenantId,
  profile: testProfile('p', { vfs: {}, ...fields }),
  tools: [],
  status: 'idle',
  createdAt: new Date().toISOString(),
  lastUsedAt: new Date().toISOString(),
})

/** The plugin of a runner on a real server, and the tools as a model calls them. */
async function setup(t: TestContext, server?: TestVfs) {
  const vfs = server ?? (await testVfs(t, { settings: { mounts } }))
  const got: { manager?: VfsManager; toolkit?: Toolkit } = {}
  const taker = definePlugin({
    name: 'taker',
    requires: { manager: VfsManager, toolkit: Toolkit },
    setup: async ({ deps }) => (Object.assign(got, deps), {}),
  })
  const runner = { name: 'vfs-runner', plugin: vfsRunner, config: { baseUrl: vfs.url } }
  await testKernel(t, [fake(Signers, { vfs: vfs.signer }), runner, toolsPlugin, taker], { listeners: [] })
  const manager = got.manager!
  const call = (session: RunnerSession, name: string, input: object, sandbox?: SessionSandbox): Promise<ToolResult> => {
    const files = manager.of(session)
    return got.toolkit!.invoke(
      name,
      input,
      testToolContext({ ...(files ? { vfs: files } : {}), ...(sandbox ? { sandbox } : {}) }),
    )
  }
  const said = async (session: RunnerSession, name: string, input: object): Promise<string> => {
    const { ok, content } = await call(session, name, input)
    return `${ok ? 'ok' : 'failed'}: ${content}`
  }
  return { vfs, manager, call, said }
}

test('a lease is opened by the first use, shown with its mounts, and closed with the session', async (t) => {
  const { vfs, manager, said } = await setup(t)
  const session = sessionOf({ vfs: { allowedMounts: ['files'] } })
  const { id } = session
  assert.equal(manager.of(sessionOf({ vfs: undefined } as unknown as Partial<Profile>)), undefined)
  assert.ok(manager.of(sessionOf({ vfs: undefined, tools: ['vfs_read'] } as unknown as Partial<Profile>)))
  assert.deepEqual([manager.leases('acme'), await manager.lease('acme', id)], [[], undefined])
  assert.equal(await vfs.client.session('acme', id), undefined, 'the server was not asked either')

  assert.match(await said(session, 'vfs_list', {}), /^ok: files\/ \(writable\)\nscratch\/ \(of this session alone\)$/)
  await said(session, 'vfs_write', { path: 'scratch/note', content: 'mine' })
  const [lease, ...others] = manager.leases('acme')
  assert.deepEqual([lease?.sessionId, lease?.state, lease?.allowedMounts, others], [id, 'open', ['files'], []])
  assert.deepEqual(manager.leases('globex'), [])
  assert.equal(manager.leases(undefined).length, 1)
  const live = await manager.lease('acme', id)
  assert.deepEqual([live?.state, live?.bytes, live?.entries], ['open', 4, 1])
  assert.equal(await manager.lease('globex', id), undefined)

  // A session that only left the memory of its runner finds its files again, as after a restart of it.
  manager.forget('acme', id)
  assert.deepEqual(manager.leases('acme'), [])
  assert.equal((await manager.lease('acme', id))?.bytes, 4)
  assert.equal(await said(session, 'vfs_read', { path: 'scratch/note' }), 'ok: mine')
  await manager.close('acme', id)
  assert.deepEqual([manager.leases('acme'), await vfs.client.session('acme', id)], [[], undefined])
  Object.assign(session, { status: 'shutdown' })
  assert.match(await said(session, 'vfs_list', {}), /^failed: This session has no VirtualFS lease/)
  assert.equal(await vfs.client.session('acme', id), undefined, 'what comes late opens nothing')
})

test('the limits of the tenant come with the lease, also those of its objects', async (t) => {
  const { said } = await setup(t)
  const session = { ...sessionOf(), limits: { objects: 1, objectBytes: 10, vfsEntries: 1 } }
  assert.match(await said(session, 'vfs_write', { path: 'files/a', content: '01234567890' }), /^failed: .*objectBytes/)
  assert.match(await said(session, 'vfs_write', { path: 'files/a', content: 'a' }), /^ok/)
  assert.match(await said(session, 'vfs_write', { path: 'files/b', content: 'b' }), /^failed: .*objects/)
  assert.match(await said(session, 'vfs_write', { path: 'scratch/a', content: 'a' }), /^ok/)
  assert.match(await said(session, 'vfs_write', { path: 'scratch/b', content: 'b' }), /^failed: .*vfsEntries/)
})

test('a lease that the server has dropped is opened again, whatever is asked first', async (t) => {
  const { vfs, said } = await setup(t)
  const session = sessionOf()
  await said(session, 'vfs_write', { path: 'files/a', content: 'a' })
  for (const [name, input, answer] of [
    ['vfs_read', { path: 'files/a' }, /^ok: a$/],
    ['vfs_read', { path: 'files/none' }, /^failed: There is no file 'files\/none'\.$/],
    ['vfs_list', { path: 'files' }, /^ok: files\/a \(1 bytes, /],
    ['vfs_search', { query: 'a' }, /^ok: files\/a/],
    ['vfs_write', { path: 'files/b', content: 'b' }, /^ok: 'files\/b' is written: 1 bytes\.$/],
  ] as const) {
    await vfs.client.close('acme', session.id)
    assert.match(await said(session, name, input), answer)
    assert.ok(await vfs.client.session('acme', session.id), name)
  }
})

test('sessions and tenants see what is theirs, and only mounts of their lease', async (t) => {
  const { said } = await setup(t)
  const one = sessionOf({ vfs: { allowedMounts: ['files', 'layered'] } })
  const two = sessionOf({ vfs: { allowedMounts: ['files', 'layered', 'manual'] } })
  const stranger = sessionOf({}, 'globex')
  for (const path of ['files/shared', 'layered/own', 'scratch/own'])
    assert.match(await said(one, 'vfs_write', { path, content: path }), /^ok/)
  assert.equal(await said(two, 'vfs_read', { path: 'files/shared' }), 'ok: files/shared')
  for (const path of ['layered/own', 'scratch/own']) {
    assert.equal(await said(one, 'vfs_read', { path }), `ok: ${path}`)
    assert.match(await said(two, 'vfs_read', { path }), /^failed: There is no file/)
  }
  assert.match(await said(stranger, 'vfs_read', { path: 'files/shared' }), /^failed: There is no file/)
  assert.equal(await said(stranger, 'vfs_search', { query: 'shared' }), 'ok: [Nothing was found.]')
  // The same id of another tenant is another session.
  const twin = { ...stranger, id: one.id }
  assert.match(await said(twin, 'vfs_read', { path: 'scratch/own' }), /^failed: There is no file/)
  for (const [name, input] of [
    ['vfs_read', { path: 'manual/x' }],
    ['vfs_list', { path: 'manual' }],
    ['vfs_write', { path: 'manual/x', content: '' }],
    ['vfs_search', { query: 'x', path: 'manual' }],
  ] as const)
    assert.match(
      await said(one, name, input),
      /^failed: The session may use these mounts: files, layered, scratch/,
      name,
    )
  assert.match(await said(two, 'vfs_write', { path: 'manual/x', content: '' }), /^failed: This mount is read-only\./)
})

test('text is read by lines, what is none as base64 by bytes, and both say how to go on', async (t) => {
  const { call, said } = await setup(t)
  const session = sessionOf()
  const read = (input: object) => said(session, 'vfs_read', { path: 'files/f', ...input })
  const write = (content: string, more: object = {}) =>
    said(session, 'vfs_write', { path: 'files/f', content, ...more })
  await write(Array.from({ length: 3_000 }, (_, i) => `Zeile ${i + 1} ü`).join('\n'))
  const first = (await read({})).split('\n')
  assert.deepEqual(
    [first[0], first[1_999], first.slice(2_000)],
    ['ok: Zeile 1 ü', 'Zeile 2000 ü', ['[The file goes on: offset 2000 shows more.]']],
  )
  assert.equal(await read({ offset: 2_999 }), 'ok: Zeile 3000 ü')
  assert.equal(await read({ offset: 10, limit: 1 }), 'ok: Zeile 11 ü\n[The file goes on: offset 11 shows more.]')
  assert.equal(await read({ offset: 3_000 }), 'ok: [The file has no more than 3000 lines.]')
  await write('ü'.repeat(200_000))
  const cut = (await call(session, 'vfs_read', { path: 'files/f' })).content
  assert.match(cut, /ü\n\[Cut in line 1, which is longer than can be shown: read it by bytes, as base64\.\]$/)
  assert.doesNotMatch(cut, /\ufffd/)
  await write('')
  assert.equal(await read({}), 'ok: [The file is empty.]')
  assert.equal(await read({ encoding: 'base64' }), 'ok: [Bytes 0 to 0 of 0, text/plain; charset=utf-8, as base64.]\n')

  assert.match(await said(session, 'vfs_write', { path: 'files/f.md', content: '' }), /^ok/)
  assert.match(await read({ path: 'files/f.md', encoding: 'base64' }), /of 0, text\/markdown, as base64/)

  const bytes = randomBytes(400_000)
  bytes[0] = 0
  assert.equal(await write(bytes.toString('base64'), { encoding: 'base64' }), "ok: 'files/f' is written: 400000 bytes.")
  let [whole, offset] = [Buffer.alloc(0), 0]
  for (;;) {
    const [head, data] = (await read(offset === 0 ? {} : { offset, encoding: 'base64' })).split('\n')
    whole = Buffer.concat([whole, Buffer.from(data!, 'base64')])
    const next = /; offset (\d+) shows more/.exec(head!)?.[1]
    if (next === undefined) break
    offset = Number(next)
  }
  assert.ok(whole.equals(bytes))
  assert.match(await read({ encoding: 'text' }), /^failed: 'f' is no text/)
  assert.match(await read({ encoding: 'base64', offset: 400_000 }), /^failed: The file has no byte 400000/)
  assert.match(await write('no base64!', { encoding: 'base64' }), /^failed: The content is no base64/)
  assert.equal(await write('x', { overwrite: false }), "failed: There already is a file 'files/f'.")
})

test('lists and searches are bounded, and bad paths are told what is wrong with them', async (t) => {
  const { said, vfs } = await setup(t)
  const session = sessionOf()
  const write = (i: number) =>
    vfs.client.write({ tenantId: 'acme' }, 'files', `many/${String(i).padStart(3, '0')}`, {
      body: Buffer.from(`line
number ${i}`),
    })
  for (let i = 0; i < 205; i += 41) await Promise.all(Array.from({ length: 41 }, (_, j) => write(i + j)))
  assert.equal(await said(session, 'vfs_list', { path: '/vfs/files/' }), 'ok: files/many/')
  const page = await said(session, 'vfs_list', { path: 'files/many' })
  const cursor = /\[There are more: cursor (.*)\]$/.exec(page)?.[1]
  assert.equal(page.split('\n').length, 201)
  const rest = await said(session, 'vfs_list', { path: 'files/many', cursor })
  assert.match(rest, /^ok: files\/many\/200 \(.*\n.*\n.*\n.*\nfiles\/many\/204 [^\n]*$/)
  const recursive = await said(session, 'vfs_list', { path: '/files', recursive: true })
  assert.match(recursive, /^ok: files\/many\/000 /)
  assert.equal(
    await said(session, 'vfs_search', { query: 'NUMBER 77', path: 'files/many' }),
    'ok: files/many/077:2: number 77',
  )
  assert.match(
    await said(session, 'vfs_search', { query: 'many', in: 'name', limit: 2 }),
    /^ok: files\/many\/000\nfiles\/many\/001\n\[There may be more/,
  )
  for (const path of [
    '../x',
    'files/../../etc/passwd',
    'files//a',
    'files/a\nb',
    'files/a\\b',
    'FILES/a',
    'files/.',
    '%2e%2e/x',
  ])
    assert.match(await said(session, 'vfs_read', { path }), /^failed: (A path is|'.*' is no name of a mount)/, path)
  assert.match(await said(session, 'vfs_read', { path: 'files' }), /^failed: 'files' is no file/)
  assert.match(await said(session, 'vfs_read', { path: 'files/many' }), /^failed: /)
  assert.match(await said(session, 'vfs_read', { path: 'nowhere/x' }), /^failed: /)
  assert.match(await said(session, 'vfs_list', { path: 'nowhere' }), /^failed: /)
})

test('what programs in the sandbox wrote is there before a tool looks, and what could not be kept is said', async (t) => {
  const { call, vfs } = await setup(t)
  const session = sessionOf()
  let settled = 0
  const sandbox: SessionSandbox = {
    call: () => assert.fail('it is not called'),
    async settleFiles() {
      const body = Buffer.from(`settled ${++settled}`)
      await vfs.client.write({ tenantId: 'acme' }, 'files', 'by-program', { body })
      return settled === 3 ? '[vfs: not kept]' : undefined
    },
  }
  assert.equal((await call(session, 'vfs_read', { path: 'files/by-program' }, sandbox)).content, 'settled 1')
  // Behind a write once more, so that the program finds it.
  const written = await call(session, 'vfs_write', { path: 'files/by-tool', content: 'x' }, sandbox)
  assert.deepEqual([written.content, settled], ["'files/by-tool' is written: 1 bytes.\n[vfs: not kept]", 3])
})

test('while the server is away tools say so, leases are of unknown state, and sessions end here, but whoever ends one is told', async (t) => {
  const { vfs, manager, said } = await setup(t)
  const session = sessionOf()
  await said(session, 'vfs_write', { path: 'files/a', content: 'a' })
  await vfs.kernel.stop()
  assert.match(await said(session, 'vfs_read', { path: 'files/a' }), /^failed: The VirtualFS server cannot be reached/)
  assert.match(await said(sessionOf(), 'vfs_list', {}), /^failed: The VirtualFS server cannot be reached/)
  assert.equal((await manager.lease('acme', session.id))?.state, 'unknown')
  await assert.rejects(manager.lease('acme', sessionOf().id), { status: 502 })
  assert.deepEqual(
    manager.leases('acme').map(({ sessionId }) => sessionId),
    [session.id],
    'a lease that could not be opened is none',
  )
  await assert.rejects(manager.close('acme', session.id), { status: 502 })
  assert.deepEqual(manager.leases('acme'), [])
})

test('the tree of a sandbox gives each mount its share, and one that fails does not take the others along', async (t) => {
  const { vfs } = await setup(t)
  await vfs.client.open('acme', 's', {})
  const view = { tenantId: 'acme', sessionId: 's' }
  for (const path of ['a', 'b/c', 'z']) await vfs.client.write(view, 'files', path, { body: Buffer.from(path) })
  await vfs.client.write(view, 'scratch', 'own', { body: Buffer.from('own') })
  const failing = new Proxy(vfs.client, {
    get: (target, name: keyof VfsClient) =>
      name === 'list'
        ? async (of: never, mount: string, ...more: never[]) => {
            if (mount === 'manual') throw new AppError('mount_unavailable', 503, { message: 'The bucket is away.' })
            return (target.list as (...all: unknown[]) => unknown)(of, mount, ...more)
          }
        : (target[name] as unknown),
  })
  const session = { ...sessionOf(), id: 's' }
  const tree = await new Leases(failing, log).of(session)!.tree()
  assert.equal(tree.share.files, 500)
  const [files, layered, manual, scratch] = tree.mounts
  assert.deepEqual(
    files?.files.map(({ path, bytes }) => [path, bytes]),
    [
      ['a', 1],
      ['b/c', 3],
      ['z', 1],
    ],
  )
  assert.ok(files?.files.every(({ etag }) => etag !== '') && files.complete)
  assert.deepEqual([layered?.files, manual?.unavailable, scratch?.files.length], [[], 'The bucket is away.', 1])
  assert.equal(manual?.complete, false)
})
