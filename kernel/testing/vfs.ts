import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { definePlugin, type Entry, type Plugin } from '#kernel'
import { type Signer, Signers } from '#contracts/signing'
import type { VfsClient } from '#contracts/vfs'
import { load } from './database.ts'
import { testKernel, type TestKernel } from './kernel.ts'

export interface TestVfsOptions {
  /** Settings of the server other than its folder, in the form of a role file. */
  readonly settings?: Readonly<Record<string, unknown>>
  /** An existing folder, e.g. that of an earlier server. */
  readonly dir?: string
  readonly plugins?: readonly (Plugin | Entry)[]
}

export interface TestVfs {
  readonly kernel: TestKernel
  readonly url: string
  /** The folder of the server. */
  readonly dir: string
  /** Base64 of the key with which the server verifies. */
  readonly key: string
  readonly signer: Signer
  /** Signs as runners do. */
  readonly runnerSigner: Signer
  readonly client: VfsClient
}

/** A VirtualFS server as its role runs it, on its own port, with objects on disk and a client. */
export async function testVfs(
  t: TestContext,
  { settings = {}, dir: given, plugins = [] }: TestVfsOptions = {},
): Promise<TestVfs> {
  const plugin = async (path: string): Promise<Plugin> => ((await load(path)) as { default: Plugin }).default
  const dir = given ?? (await mkdtemp(join(tmpdir(), 'ao-vfs-')))
  if (given === undefined) t.after(() => rm(dir, { recursive: true, force: true }))
  const key = randomBytes(32).toString('base64')
  let signers: ReadonlyMap<string, Signer> = new Map()
  const probe = definePlugin({
    name: 'probe',
    requires: { signers: Signers },
    setup: async ({ deps }) => ((signers = deps.signers), {}),
  })
  const entries: Entry[] = [
    { name: 'kv', plugin: await plugin('plugins/kv/index.ts'), config: { withoutRedis: 'memory' } },
    {
      name: 'signing-runner',
      plugin: await plugin('plugins/auth/signing/index.ts'),
      config: { family: 'runner', current: randomBytes(32).toString('base64') },
    },
    {
      name: 'signing-vfs',
      plugin: await plugin('plugins/auth/signing/index.ts'),
      config: { family: 'vfs', current: key },
    },
    { name: 'storage', plugin: await plugin('plugins/storage/index.ts') },
    {
      name: 'storage-disk',
      plugin: await plugin('providers/storage-disk/index.ts'),
      config: { dir: join(dir, 'objects') },
    },
    { name: 'storage-folders', plugin: await plugin('providers/storage-disk/object-folders/index.ts') },
    { name: 'storage-buckets', plugin: await plugin('providers/storage-s3/buckets/index.ts') },
    { name: 'vfs', plugin: await plugin('plugins/vfs/index.ts'), config: { dir: join(dir, 'vfs'), ...settings } },
    { name: 'probe', plugin: probe },
  ]
  const kernel = await testKernel(t, [...entries, ...plugins], { listeners: ['vfs'], listen: true })
  const url = kernel.urls['vfs']!
  const signer = signers.get('vfs')!
  const { createVfsClient } = (await load('plugins/vfs/client.ts')) as {
    createVfsClient(options: { baseUrl: string; signer: Signer }): VfsClient
  }
  const client = createVfsClient({ baseUrl: url, signer })
  t.after(() => client.dispose())
  return { kernel, url, dir, key, signer, runnerSigner: signers.get('runner')!, client }
}
