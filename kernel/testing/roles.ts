import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import type { LightMyRequestResponse } from 'fastify'
import type { TenantRole } from '#contracts/auth'
import { type Consumed, definePlugin, type Entry, type Plugin, type Refs } from '../plugin.ts'
import { freshDatabase, load } from './database.ts'
import { testKernel, type TestKernel, testRole } from './kernel.ts'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Signer, Signers } from '#contracts/signing'
import type { VfsClient } from '#contracts/vfs'

/** The fields of an answer that tests read. */
export interface TestBody {
  readonly [field: string]: unknown
}
export interface TestAnswer {
  readonly status: number
  readonly text: string
  /** Empty if the body is not JSON. */
  readonly body: TestBody
  readonly headers: Readonly<Record<string, unknown>>
}
/** Makes a request with a key. `body` is sent as JSON; a text is sent unchanged. */
export type TestCall<A = TestAnswer> = (
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE',
  url: string,
  body?: unknown,
  headers?: Readonly<Record<string, string>>,
) => Promise<A>

interface OperatedOptions<R extends Refs> {
  /** The capabilities of the conductor's plugins that the test uses. */
  readonly needs: R
  /** The database of another conductor, which makes this its second one. */
  readonly dsn?: string | undefined
  readonly variables?: Readonly<Record<string, string>>
  /** Settings by plugin, which come before those of the role file. */
  readonly settings?: Readonly<Record<string, object>>
}

/** The conductor as an operator runs it, on a database of its own. Its operator is an admin of `default`, who makes tenants and keys. */
export async function operatedConductor<const R extends Refs>(
  t: TestContext,
  { needs, dsn, variables = {}, settings = {} }: OperatedOptions<R>,
) {
  const found: Consumed<R>[] = []
  const probe = definePlugin({ name: 'probe', requires: needs, setup: async ({ deps }) => (found.push(deps), {}) })
  const bootstrap = randomBytes(24).toString('hex')
  const where = dsn ?? (await freshDatabase(t))
  const given = {
    POSTGRES_DSN: where,
    // Nothing answers at this runner's address: these tests run no profile.
    RUNNER_URLS: 'http://127.0.0.1:1',
    AGENT_ORC_BOOTSTRAP_KEY: bootstrap,
    AGENT_ORC_BOOTSTRAP: 'always',
    AGENT_ORC_ADMIN_TENANT: 'default',
    ...variables,
  }
  const kernel = await testRole(t, 'conductor', [probe], given, { settings })
  const askingWith =
    (key: string | undefined): TestCall<LightMyRequestResponse> =>
    (method, url, body, headers) =>
      kernel.listeners['conductor']!.inject({
        method,
        url,
        headers: {
          ...(key === undefined ? {} : { authorization: `Bearer ${key}` }),
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...headers,
        },
        ...(body === undefined ? {} : { payload: typeof body === 'string' ? body : JSON.stringify(body) }),
      })
  const callerWith = (key: string | undefined): TestCall => {
    const ask = askingWith(key)
    return async (...request) => {
      const { statusCode: status, headers, body: text } = await ask(...request)
      const isJson = text !== '' && String(headers['content-type']).includes('json')
      return { status, headers, text, body: isJson ? (JSON.parse(text) as TestBody) : {} }
    }
  }
  const operator = callerWith(bootstrap)
  /** The owner's key of another tenant, which is created for it. */
  const keyOf = async (id: string): Promise<string> => {
    const { body } = await operator('POST', '/api/tenants', { id, name: id, ownerKey: true })
    return (body['ownerKey'] as { readonly token: string }).token
  }
  return {
    kernel,
    dsn: where,
    /** The capabilities that the test needs. */
    parts: found[0]!,
    bootstrap,
    operator,
    /** Calls whose answers have Fastify's form. */
    askingWith,
    /** With undefined the call has no key, like an anonymous one. */
    callerWith,
    keyOf,
    other: async (id: string): Promise<TestCall> => callerWith(await keyOf(id)),
    async withRole(role: TenantRole): Promise<TestCall> {
      const { body } = await operator('POST', '/api/api-keys', { label: role, role })
      return callerWith(body['token'] as string)
    },
  }
}

export interface TestVfsOptions {
  /** Settings of the server other than its folder, in the form of a role file. */
  readonly settings?: Readonly<Record<string, unknown>>
  /** Base64, for both families of its callers; by default each has a key of its own. */
  readonly keys?: { readonly current: string; readonly previous?: string }
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
  { settings = {}, keys, dir: given, plugins = [] }: TestVfsOptions = {},
): Promise<TestVfs> {
  const plugin = async (path: string): Promise<Plugin> => ((await load(path)) as { default: Plugin }).default
  const dir = given ?? (await mkdtemp(join(tmpdir(), 'ao-vfs-')))
  if (given === undefined) t.after(() => rm(dir, { recursive: true, force: true }))
  const key = keys?.current ?? randomBytes(32).toString('base64')
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
      config: { family: 'runner', current: randomBytes(32).toString('base64'), ...keys },
    },
    {
      name: 'signing-vfs',
      plugin: await plugin('plugins/auth/signing/index.ts'),
      config: { family: 'vfs', current: key, ...keys },
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
