import assert from 'node:assert/strict'
import { request } from 'node:http'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { definePlugin } from '#kernel'
import type { RunnerSession } from '#contracts/runner'
import { Signers } from '#contracts/signing'
import { copyBounds, type SessionVfs } from '#contracts/session-vfs'
import type { VfsView } from '#contracts/vfs'
import { VfsManager } from '#contracts/vfs-manager'
import { workerPaths } from '#contracts/wire/worker'
import { fake, testEnvelope, testKernel, testProfile, testVfs, type TestVfs } from '#testing'
import vfsRunner from '../plugins/vfs/runner/index.ts'
import { hubPlugin, newSession, wayOf } from '../plugins/sandboxes/test/hub.ts'
import { createFakeLink } from '../plugins/worker/test/fake-link.ts'
import { startWorker } from '../plugins/worker/test/support.ts'

// A real VirtualFS server, the runner's part of it, and real workers with their tools; only the sandbox around them is missing.

const mounts = {
  files: { kind: 'objects', tenants: ['*'] },
  layered: { kind: 'objects', tenants: ['*'], prefix: 'layered/', copyOnWrite: true },
}
const never = new AbortController().signal
const limits = { signal: never, timeoutMs: 60_000, vfs: true }

async function setup(t: TestContext, more: object = {}) {
  const vfs: TestVfs = await testVfs(t, { settings: { mounts: { ...mounts, ...more } } })
  const got: { manager?: VfsManager } = {}
  const sessions = new Map<string, RunnerSession>()
  const { hub, plugin } = hubPlugin({
    filesOf({ tenantId, sessionId }): SessionVfs | undefined {
      const session = sessions.get(`${tenantId} ${sessionId}`)
      return session && got.manager!.of(session)
    },
  })
  const taker = definePlugin({
    name: 'taker',
    requires: { manager: VfsManager },
    setup: async ({ deps }) => (Object.assign(got, deps), {}),
  })
  const runner = { name: 'vfs-runner', plugin: vfsRunner, config: { baseUrl: vfs.url } }
  const listeners = ['runner', 'workers'] as const
  const kernel = await testKernel(t, [fake(Signers, { vfs: vfs.signer }), runner, plugin, taker], {
    listen: true,
    listeners,
  })
  const url = kernel.urls['workers']!
  /** A session with a worker that polls. */
  const open = async (tenantId = 'acme', link = createFakeLink()) => {
    const id = newSession()
    const profile = testProfile('p', { vfs: {}, workerMode: 'sandbox' })
    sessions.set(`${tenantId} ${id}`, {
      id,
      tenantId,
      profile,
      tools: [],
      status: 'idle',
      createdAt: '',
      lastUsedAt: '',
    })
    const channel = await hub.open(tenantId, id)
    const worker = await startWorker(t, { url, sessionId: id, token: channel.token, link })
    await channel.connected(AbortSignal.timeout(60_000))
    // Its first poll may have come before it said that it takes tools.
    const call = (name: string, input: object) => channel.callTool(name, input as Record<string, unknown>, limits)
    const shell = async (command: string): Promise<string> => (await call('shell', { command })).content
    const view: VfsView = { tenantId, sessionId: id }
    return { id, channel, worker, call, shell, view }
  }
  const read = async (view: VfsView, mount: string, path: string): Promise<string | undefined> => {
    const file = await vfs.client.read(view, mount, path)
    return file && text(file.body as AsyncIterable<Buffer>)
  }
  return { vfs, url, hub, open, read, manager: got.manager! }
}

test('a shell and the VirtualFS see the same files, and so does the next session where the mount lets it', async (t) => {
  const { vfs, open, read, manager } = await setup(t)
  await vfs.client.write({ tenantId: 'acme' }, 'files', 'given/ü.txt', { body: Buffer.from('given') })
  const one = await open()
  assert.deepEqual(manager.leases('acme'), [], 'a session that touches no files has no lease')
  assert.equal(await one.shell('cat vfs/files/given/ü.txt; ls vfs'), 'givenfiles\nlayered\nscratch\n[Exit code 0.]')
  assert.equal(manager.leases('acme').length, 1)
  const wrote = await one.shell(
    'mkdir vfs/files/new && echo made > vfs/files/new/by-shell && echo mine > vfs/layered/x && echo s > vfs/scratch/x && rm vfs/files/given/*',
  )
  assert.equal(wrote, '[Exit code 0.]')
  assert.equal(await read(one.view, 'files', 'new/by-shell'), 'made\n')
  assert.equal(await read(one.view, 'files', 'given/ü.txt'), undefined)
  assert.equal(await read(one.view, 'layered', 'x'), 'mine\n')
  await vfs.client.write(one.view, 'scratch', 'by-tool', { body: Buffer.from('tool') })
  assert.equal((await one.call('read_file', { path: 'vfs/scratch/by-tool' })).content, 'tool')
  assert.equal((await one.call('write_file', { path: 'vfs/files/by-write', content: 'w' })).ok, true)
  await one.shell("echo '# Found' > vfs/scratch/found.md; chmod +x vfs/scratch/found.md")
  const found = await vfs.client.read(one.view, 'scratch', 'found.md')
  assert.equal(found!.entry.contentType, 'text/markdown; executable=1')
  assert.equal(await text(found!.body as AsyncIterable<Buffer>), '# Found\n')

  const two = await open()
  assert.equal(
    await two.shell('cd vfs; find . -type f | sort; cat files/new/by-shell'),
    './files/by-write\n./files/new/by-shell\nmade\n[Exit code 0.]',
    'neither the layer nor the scratch space of the other session',
  )
  const stranger = await open('globex')
  assert.equal(await stranger.shell('find vfs -type f'), '[Exit code 0.]')
})

test('a runtime with tools of its own finds what others wrote, and what it wrote is there when its run is over', async (t) => {
  const { vfs, open, read } = await setup(t)
  await vfs.client.write({ tenantId: 'acme' }, 'files', 'question', { body: Buffer.from('?') })
  const link = createFakeLink()
  const run = link.run
  link.run = async function* (envelope, signal) {
    const { workspace } = vendor.worker
    await writeFile(join(workspace, 'vfs/files/answer'), 'found')
    yield* run.call(link, envelope, signal)
  }
  const vendor = await open('acme', link)
  const envelope = testEnvelope({ sessionId: vendor.id })
  let text = ''
  const lines = vendor.channel.run(envelope, never, { ...wayOf(vfs.url), vfs: true })
  for await (const chunk of lines) {
    text += chunk.toString()
    if (text.includes('"result"')) assert.equal(await read(vendor.view, 'files', 'answer'), 'found')
  }
  assert.match(text, /"result"/)
})

test('what a hostile program leaves is bounded: 100,000 files, a sparse file of 1 TB, links, names on two lines', async (t) => {
  // Of many mounts each has a small share of the sandbox.
  const others = Array.from({ length: 37 }, (_, i) => [`m${i}`, { kind: 'objects', tenants: ['*'], prefix: `m${i}/` }])
  const { open, vfs } = await setup(t, Object.fromEntries(others) as object)
  const { shell, view } = await open()
  const said = await shell(
    `cd vfs/scratch && truncate -s 1T sparse && ln -s /etc/passwd passwd && ln -s / root && printf x > 'two
lines' && mkdir many && cd many && seq -w 100000 | xargs touch`,
  )
  assert.match(said, /^\[Exit code 0\.\]\n/)
  assert.match(said, /'vfs\/scratch' has more entries than are looked at/)
  const kept: string[] = []
  for (let cursor: string | undefined; ;) {
    const page = await vfs.client.list(view, 'scratch', '', {
      recursive: true,
      limit: 1_000,
      ...(cursor === undefined ? {} : { cursor }),
    })
    kept.push(...page.entries.map(({ path }) => path))
    if ((cursor = page.cursor) === undefined) break
  }
  assert.ok(kept.length <= copyBounds.files / 40, `${kept.length}`)
  assert.ok(kept.every((path) => path.startsWith('many/')))
  const again = await shell('rm -r vfs/scratch/many; echo over > vfs/scratch/after')
  for (const part of [
    "'vfs/scratch/sparse'",
    "'vfs/scratch/passwd'",
    'links are not kept',
    "'vfs/scratch/two\\nlines'",
  ])
    assert.ok(again.includes(part), `${part}: ${again}`)
})

test('while the server is away a tool does its work and says what that means', async (t) => {
  const { vfs, open } = await setup(t)
  const { shell } = await open()
  assert.equal(await shell('echo 1 > vfs/files/a'), '[Exit code 0.]')
  await vfs.kernel.stop()
  const said = await shell('cat vfs/files/a; echo 2 > vfs/files/a')
  assert.match(said, /^1\n\[Exit code 0\.\]\n\[vfs: the virtual file system cannot be reached, .*\]$/)
})

test('a worker gets no further than its session, whatever it asks for', async (t) => {
  const { vfs, url, open, read } = await setup(t)
  const [mine, other] = [await open(), await open('globex')]
  await vfs.client.open('globex', other.id, {})
  await vfs.client.write(other.view, 'scratch', 'secret', { body: Buffer.from('secret') })
  interface Sent {
    readonly method?: string
    readonly token?: string
    readonly headers?: Record<string, string | number>
    readonly body?: string | Buffer
  }
  /** Not by `fetch`, which would tidy the path up. */
  const ask = (path: string, { method = 'GET', token = mine.channel.token, headers = {}, body }: Sent = {}) =>
    new Promise<{ readonly status: number; readonly body: string }>((resolve, reject) => {
      const sent = request(
        url,
        { agent: false, method, path, headers: { authorization: `Bearer ${token}`, ...headers } },
        (answer) => {
          text(answer).then((said) => resolve({ status: answer.statusCode!, body: said }), reject)
        },
      )
      sent.on('error', reject)
      sent.end(body)
    })
  const [paths, theirs] = [workerPaths(mine.id), workerPaths(other.id)]
  assert.equal((await ask(paths.vfsTree)).status, 200)
  assert.equal((await ask(theirs.vfsTree)).status, 401)
  assert.equal((await ask(theirs.vfsFile('scratch', 'secret'))).status, 401)
  assert.equal((await ask(paths.vfsFile('scratch', 'secret'))).status, 404)
  const base = paths.vfsTree
  for (const path of [
    '..',
    '%2e%2e',
    '..%2f..%2fsessions',
    'a/../../../x',
    'a%5cb',
    'a%00b',
    'a%0ab',
    '%252e%252e/x',
  ]) {
    const { status, body } = await ask(`${base}/scratch/${path}`)
    assert.ok(status === 400 || status === 404 || status === 401, `${path}: ${status} ${body}`)
    assert.doesNotMatch(body, /secret"?$/)
  }
  for (const mount of ['nowhere', '..', '%2e%2e', 'FILES', ''])
    assert.ok([400, 403, 404].includes((await ask(`${base}/${mount}/x`)).status), mount)
  const put = (headers: Record<string, string | number>, body?: Buffer) =>
    ask(paths.vfsFile('files', 'x'), { method: 'PUT', headers, ...(body ? { body } : {}) })
  assert.equal((await put({ 'transfer-encoding': 'chunked' }, Buffer.from('x'))).status, 411)
  assert.equal((await put({ 'content-length': copyBounds.fileBytes + 1 }).catch(() => ({ status: 413 }))).status, 413)
  assert.equal((await put({ 'if-match': 'no tag', 'content-length': 1 }, Buffer.from('x'))).status, 400)
  assert.equal((await put({ 'if-match': '"other"', 'content-length': 1 }, Buffer.from('x'))).status, 412)
  assert.equal(await read({ tenantId: 'acme' }, 'files', 'x'), undefined)
  // Uploads that never end hold no more than their places.
  const hanging = Array.from({ length: 8 }, () => {
    const sent = request(url, {
      method: 'PUT',
      path: paths.vfsFile('files', 'y'),
      headers: { authorization: `Bearer ${mine.channel.token}`, 'content-length': 10 },
    })
    sent.on('error', () => {})
    sent.write('x')
    return sent
  })
  while ((await ask(paths.vfsTree)).status !== 429) await sleep(5)
  for (const sent of hanging) sent.destroy()
  while ((await ask(paths.vfsTree)).status !== 200) await sleep(5)
  assert.equal(await read({ tenantId: 'acme' }, 'files', 'y'), undefined, 'nothing of a broken upload is seen')
})
