import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { defaultLimits, type Limits, TenantLimits } from '#contracts/limits'
import { ObjectStore } from '#contracts/object-store'
import { TenantData, type TenantDataStore } from '#contracts/retention'
import { diskStoragePlugin, fake, testKernel } from '#testing'
import storage from '../index.ts'

/** Every caller acts for the tenant in the header `tenant`. */
const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({ tenantId: String(headers['tenant'] ?? 'acme'), role: 'owner', keyId: 'tak_test' }),
}

interface Options {
  readonly limits?: Partial<Limits>
  /** False: the role has no backend. */
  readonly backend?: false
  readonly dir?: string
  readonly listen?: boolean
}

/** A conductor that has only the object store, on disk. */
export async function startStorage(t: TestContext, { limits = {}, backend, dir: given, listen = false }: Options = {}) {
  const dir = given ?? (await mkdtemp(join(tmpdir(), 'ao-storage-')))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const found: { store: ObjectStore; data: ReadonlyMap<string, TenantDataStore> }[] = []
  const uses = new Map<string, (tenantId: string) => unknown>()
  const probe = definePlugin({
    name: 'probe',
    requires: { store: ObjectStore, data: TenantData },
    setup: async ({ deps }) => (found.push(deps), {}),
  })
  const kernel = await testKernel(
    t,
    [
      fake(ApiGuard, openGuard),
      fake(TenantLimits, {
        of: () => ({ ...defaultLimits, ...limits }),
        paced: (_: string, body: AsyncIterable<Uint8Array>) => body,
        uses: (name: string, count: (tenantId: string) => unknown) => void uses.set(name, count),
      } as unknown as TenantLimits),
      await diskStoragePlugin(backend === false ? undefined : dir),
      { name: 'storage', plugin: storage },
      probe,
    ],
    { listeners: ['conductor'], listen },
  )
  const app = kernel.listeners['conductor']!
  const call = (
    method: 'GET' | 'HEAD' | 'PUT' | 'DELETE',
    path: string,
    { headers = {}, payload }: { headers?: Record<string, string>; payload?: string | Buffer } = {},
  ) =>
    app.inject({
      method,
      url: `/api/storage${path}`,
      headers,
      ...(payload === undefined ? {} : { payload }),
    })
  const put = (key: string, payload: string | Buffer, headers: Record<string, string> = {}) =>
    call('PUT', `/objects/${key}`, { payload, headers: { 'content-type': 'text/plain', ...headers } })
  /** The names of uploads that are under way or were left over. */
  const incoming = () => readdir(join(dir, '.incoming'))
  const used = async (name: string, tenantId = 'acme') => uses.get(name)?.(tenantId)
  return { ...found[0]!, kernel, dir, call, put, incoming, used }
}
