import {
  lastCharacter,
  mostObjectsAtOnce,
  objectErrors,
  type ObjectPage,
  type ObjectStore,
} from '#contracts/object-store'

/** How the keys begin of what the server itself keeps for a tenant. It counts as the tenant's and goes with the tenant. */
const reserved = '.agent-orc/'

/** Removals of a prefix at once that have to be made one by one. */
const atOnce = 8

/** What tenants and their agents have of a store: to them the reserved keys are none. */
export function visibleArea(store: ObjectStore): ObjectStore {
  const isReserved = (key: string): boolean => key.startsWith(reserved)
  const list: ObjectStore['list'] = async (tenantId, query) => {
    const { prefix = '', limit = 100 } = query
    if (isReserved(prefix)) return { objects: [], prefixes: [] }
    const page = await store.list(tenantId, query)
    // They stand beside one another, so that at most one more page is read.
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
    remove: async (tenantId, key, ifMatch) => !isReserved(key) && store.remove(tenantId, key, ifMatch),
    async removeAll(tenantId, prefix) {
      if (isReserved(prefix)) return { deleted: 0, more: false }
      if (!reserved.startsWith(prefix)) return store.removeAll(tenantId, prefix)
      const { objects, next }: ObjectPage = await list(tenantId, { prefix, limit: mostObjectsAtOnce })
      let deleted = 0
      for (let from = 0; from < objects.length; from += atOnce) {
        const gone = await Promise.all(objects.slice(from, from + atOnce).map(({ key }) => store.remove(tenantId, key)))
        deleted += gone.filter(Boolean).length
      }
      return { deleted, more: next !== undefined }
    },
  }
}

/** The reserved keys of a store, without what they begin with. */
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
    remove: (tenantId, key, ifMatch) => store.remove(tenantId, reserved + key, ifMatch),
    removeAll: (tenantId, prefix) => store.removeAll(tenantId, reserved + prefix),
  }
}
