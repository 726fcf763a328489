import { createHash } from 'node:crypto'
import { Readable } from 'node:stream'
import { httpErrors, invalidField, isAppError } from '#kernel'
import type { TenantLimits } from '#contracts/limits'
import {
  isKeyPrefix,
  isNewObjectKey,
  isObjectKey,
  lastCharacter,
  maxObjectBytes,
  mostObjectsAtOnce,
  type ObjectBackend,
  objectErrors,
  type ObjectPage,
  type ObjectQuery,
  type ObjectStore,
  type OpenObject,
  type Upload,
} from '#contracts/object-store'
import type { Metrics } from './metrics.ts'
import type { Usage } from './usage.ts'

/** The objects of tenants in one backend: checks keys, measures bytes, enforces limits, and counts operations. */
export class CheckedStore implements ObjectStore {
  readonly backend: string
  readonly #objects: ObjectBackend
  readonly #usage: Usage
  readonly #metrics: Metrics

  constructor(backend: string, objects: ObjectBackend, usage: Usage, metrics: Metrics) {
    this.backend = backend
    this.#objects = objects
    this.#usage = usage
    this.#metrics = metrics
  }

  put(tenantId: string, key: string, upload: Upload) {
    return this.#metrics.timed('put', async () => {
      if (!isNewObjectKey(key)) throw objectErrors.invalidKey()
      if ((upload.bytes ?? 0) > maxObjectBytes) throw tooLarge()
      if (!/^[\x20-\x7e]{1,255}$/.test(upload.contentType))
        throw invalidField('headers/content-type', 'is at most 255 characters of ASCII')
      const before = async (): Promise<number | undefined> => {
        const found = await this.#objects.open(tenantId, key)
        await found?.close()
        return found?.info.bytes
      }
      const { bytes, limits } = upload
      const room = await this.#usage.room(tenantId, { bytes, limits, replaced: before })
      const { body, sha256 } = measured(upload, (bytes) => room.grow(bytes))
      const { contentType, when = {} } = upload
      const { info, replaced } = await this.#objects
        .put(tenantId, key, { body, sha256, contentType, when })
        .catch(async (error: unknown) => {
          // If the reservation cannot be released now, the nightly count releases it.
          await room.close().catch(() => {})
          throw error
        })
      // If this fails, the reservation stays and the nightly count corrects it. The object is stored, so the upload has not failed.
      await room.close({ bytes: info.bytes, replaced }).catch(() => {})
      this.#metrics.bytes.inc({ direction: 'in' }, info.bytes)
      return { info, created: replaced === undefined, replaced }
    })
  }

  open(tenantId: string, key: string): Promise<OpenObject | undefined> {
    return this.#metrics.timed('get', async () => {
      check(key)
      const found = await this.#objects.open(tenantId, key)
      if (!found) return undefined
      const { info } = found
      return {
        info,
        close: () => found.close(),
        read: async (range) => {
          const body = await found.read(range)
          this.#metrics.bytes.inc({ direction: 'out' }, range ? range.to - range.from + 1 : info.bytes)
          return body
        },
      }
    })
  }

  list(tenantId: string, query: Partial<ObjectQuery>): Promise<ObjectPage> {
    return this.#metrics.timed('list', () => {
      const { prefix = '', after = '', limit = 100, folders = false } = query
      if (!isKeyPrefix(prefix)) throw objectErrors.invalidKey()
      return this.#objects.list(tenantId, { prefix, after, limit: Math.min(limit, mostObjectsAtOnce), folders })
    })
  }

  remove(tenantId: string, key: string, ifMatch?: string, signal?: AbortSignal): Promise<boolean> {
    return this.#metrics.timed('delete', async () => {
      check(key)
      const bytes = await this.#objects.remove(tenantId, key, ifMatch, signal)
      if (bytes === undefined) return false
      await this.#usage.removed(tenantId, { bytes, objects: 1 })
      return true
    })
  }

  removeAll(tenantId: string, prefix: string, signal?: AbortSignal) {
    return this.#metrics.timed('delete', async () => {
      if (!isKeyPrefix(prefix)) throw objectErrors.invalidKey()
      const { more, ...gone } = await this.#objects.removeAll(tenantId, prefix, mostObjectsAtOnce, signal)
      await this.#usage.removed(tenantId, gone)
      return { deleted: gone.objects, more }
    })
  }
}

/** The same store, with reads limited to the rate of their tenant. */
export const pacedReads = (store: ObjectStore, limits: Pick<TenantLimits, 'paced'>): ObjectStore => ({
  backend: store.backend,
  put: (...args) => store.put(...args),
  list: (...args) => store.list(...args),
  remove: (...args) => store.remove(...args),
  removeAll: (...args) => store.removeAll(...args),
  async open(tenantId, key) {
    const found = await store.open(tenantId, key)
    if (!found) return undefined
    const read: OpenObject['read'] = async (range) =>
      Readable.from(limits.paced(tenantId, await found.read(range)), { objectMode: false })
    return { info: found.info, close: () => found.close(), read }
  },
})

const none = async (): Promise<never> => {
  throw objectErrors.storageNotConfigured()
}
/** The store of a role without a backend. */
export const noStore: ObjectStore = {
  backend: undefined,
  put: none,
  open: none,
  list: none,
  remove: none,
  removeAll: none,
}

const tooLarge = () =>
  httpErrors.bodyTooLarge({
    message: `An object has at most ${maxObjectBytes} bytes (8 MiB).`,
    detail: { max: maxObjectBytes },
  })

function check(key: string): void {
  if (!isObjectKey(key)) throw objectErrors.invalidKey()
}

/** Passes the bytes of an upload on. At the end it fails if the length or digest differs from the announced one. */
function measured({ body, bytes: announced, checksums = {} }: Upload, grow: (bytes: number) => Promise<void>) {
  const sha256 = createHash('sha256')
  const md5 = checksums.md5 === undefined ? undefined : createHash('md5')
  let digest = ''
  const passing = async function* (): AsyncGenerator<Uint8Array> {
    let bytes = 0
    try {
      for await (const chunk of body) {
        bytes += chunk.length
        if (bytes > maxObjectBytes) throw tooLarge()
        if (announced === undefined) await grow(chunk.length)
        sha256.update(chunk)
        md5?.update(chunk)
        yield chunk
      }
    } catch (cause) {
      throw isAppError(cause) ? cause : objectErrors.uploadBroken({ cause })
    }
    if (announced !== undefined && bytes !== announced) throw objectErrors.uploadBroken()
    digest = sha256.digest('hex')
    const wrong =
      (checksums.sha256 !== undefined && checksums.sha256 !== digest) ||
      (md5 !== undefined && checksums.md5 !== md5.digest('hex'))
    if (wrong) throw objectErrors.checksumMismatch()
  }
  return { body: passing(), sha256: () => digest }
}

/** The key prefix of objects that the server itself keeps for a tenant. These objects count for the tenant's limits and are erased with the tenant. */
const reserved = '.agent-orc/'

/** Concurrent deletions below a prefix. */
const atOnce = 8

/** The store for tenants and their agents, without the reserved keys. */
export function visibleArea(store: ObjectStore): ObjectStore {
  const isReserved = (key: string): boolean => key.startsWith(reserved)
  const list: ObjectStore['list'] = async (tenantId, query) => {
    const { prefix = '', limit = 100 } = query
    if (isReserved(prefix)) return { objects: [], prefixes: [] }
    const page = await store.list(tenantId, query)
    // Reserved keys are adjacent, so at most one more page is read.
    if (!reserved.startsWith(prefix)) return page
    const objects = page.objects.filter(({ key }) => !isReserved(key))
    const prefixes = page.prefixes.filter((one) => !isReserved(one))
    const room = limit - objects.length - prefixes.length
    const hidden = page.objects.length + page.prefixes.length - objects.length - prefixes.length
    if (hidden === 0 || page.next === undefined) return { ...page, objects, prefixes }
    const behind = await store.list(tenantId, { ...query, limit: room, after: `${reserved}${lastCharacter}` })
    return {
      objects: [...objects, ...behind.objects],
      prefixes: [...prefixes, ...behind.prefixes],
      ...(behind.next === undefined ? {} : { next: behind.next }),
    }
  }
  return {
    backend: store.backend,
    async put(tenantId, key, upload) {
      if (isReserved(key)) throw objectErrors.invalidKey({ message: `Keys that begin with ${reserved} are reserved.` })
      return store.put(tenantId, key, upload)
    },
    open: async (tenantId, key) => (isReserved(key) ? undefined : store.open(tenantId, key)),
    list,
    remove: async (tenantId, key, ...how) => !isReserved(key) && store.remove(tenantId, key, ...how),
    async removeAll(tenantId, prefix, signal) {
      if (isReserved(prefix)) return { deleted: 0, more: false }
      if (!reserved.startsWith(prefix)) return store.removeAll(tenantId, prefix, signal)
      const { objects, next }: ObjectPage = await list(tenantId, { prefix, limit: mostObjectsAtOnce })
      let deleted = 0
      for (let from = 0; from < objects.length; from += atOnce) {
        const gone = await Promise.all(
          objects.slice(from, from + atOnce).map(({ key }) => store.remove(tenantId, key, undefined, signal)),
        )
        deleted += gone.filter(Boolean).length
      }
      return { deleted, more: next !== undefined }
    },
  }
}

/** The reserved keys of a store, without their prefix. */
export function reservedArea(store: ObjectStore): ObjectStore {
  const own = <T extends { readonly key: string }>(info: T): T => ({ ...info, key: info.key.slice(reserved.length) })
  return {
    backend: store.backend,
    async put(tenantId, key, upload) {
      const { info, created } = await store.put(tenantId, reserved + key, upload)
      return { info: own(info), created }
    },
    async open(tenantId, key) {
      const found = await store.open(tenantId, reserved + key)
      return found && { info: own(found.info), read: (range) => found.read(range), close: () => found.close() }
    },
    async list(tenantId, { prefix = '', after = '', ...query }) {
      const from = after === '' ? {} : { after: reserved + after }
      const { objects, prefixes, next } = await store.list(tenantId, { ...query, ...from, prefix: reserved + prefix })
      return {
        objects: objects.map(own),
        prefixes: prefixes.map((one) => one.slice(reserved.length)),
        ...(next === undefined ? {} : { next: next.slice(reserved.length) }),
      }
    },
    remove: (tenantId, key, ...how) => store.remove(tenantId, reserved + key, ...how),
    removeAll: (tenantId, prefix, signal) => store.removeAll(tenantId, reserved + prefix, signal),
  }
}
