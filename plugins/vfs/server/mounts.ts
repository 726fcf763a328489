import { mkdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { TenantList } from '#kernel'
import { limitErrors } from '#contracts/limits'
import type { Buckets, ObjectStore, Upload } from '#contracts/object-store'
import { secretOf } from '#contracts/secrets'
import { isVfsPrefix, type VfsMount, vfsErrors, type VfsMountInput } from '#contracts/vfs'
import { isOwnHost, type OwnHost } from '#kit/own-hosts'
import { Turns } from '#kit/turns'
import { BucketPool } from './buckets.ts'
import { FolderTree } from './folder.ts'
import { FolderUse } from './folder-use.ts'
import type { MountSettings } from './settings.ts'
import { ObjectTree, type Tree } from './tree.ts'
import { writeWhole } from './sessions.ts'
import { countedTree } from './usage.ts'

/** The settings of a mount. `own`: the tenant added the mount itself. */
type Behind = Omit<MountSettings, 'tenants'> & { readonly own: boolean }

interface Folder {
  readonly tree: FolderTree
  readonly use: FolderUse
}

interface Options {
  readonly dir: string
  readonly shared: Readonly<Record<string, MountSettings>>
  readonly scratch: string
  readonly store: ObjectStore | undefined
  readonly buckets: Buckets | undefined
  /** The folder in which uploads to buckets wait until they are whole. */
  readonly uploads: string
  readonly own: { readonly tenants: TenantList; readonly most: number; readonly hosts: readonly OwnHost[] }
  /** The tenant's limits of objects, for a store that does not know them itself. */
  readonly limitsOf: (tenantId: string) => Promise<NonNullable<Upload['limits']>>
  /** Resolves to the value of a tenant's `secret://name`. */
  readonly secret: (tenantId: string, reference: string) => Promise<string>
}

/**
 * The mounts of tenants: mounts of the role file that the tenant may use, and the tenant's own mounts. The own mounts are in one file for each
 * tenant.
 */
export class Mounts {
  readonly #options: Options
  readonly #pool: BucketPool
  readonly #own = new Map<string, Promise<Map<string, VfsMountInput>>>()
  readonly #folders = new Map<string, Promise<Folder>>()
  /** Changes of a tenant's mounts run one after another, so that each change begins with the result of the previous one. */
  readonly #turns = new Turns()

  constructor(options: Options) {
    this.#options = options
    this.#pool = new BucketPool(options.buckets, options.uploads, options.secret)
  }

  /** All mounts, ordered by name. `inSession`: as a session sees them, with its scratch space. */
  async list(tenantId: string, inSession: boolean): Promise<VfsMount[]> {
    const { shared, scratch } = this.#options
    const names = [...new Set([...Object.keys(shared), ...(await this.#ownOf(tenantId)).keys()])]
    const found = await Promise.all(names.map(async (name) => ({ name, behind: await this.#find(tenantId, name) })))
    const mounts = found.flatMap(({ name, behind }): VfsMount[] => (behind ? [shown(name, behind, inSession)] : []))
    if (inSession) mounts.push({ name: scratch, kind: 'scratch', readOnly: false, copyOnWrite: false, own: false })
    return mounts.sort((a, b) => (a.name < b.name ? -1 : 1))
  }

  /** Opens a mount. Undefined if the tenant has no mount of this name. */
  async open(
    tenantId: string,
    name: string,
  ): Promise<{ tree: Tree; readOnly: boolean; copyOnWrite: boolean } | undefined> {
    const behind = await this.#find(tenantId, name)
    if (!behind) return undefined
    const { readOnly, copyOnWrite } = behind
    return { tree: await this.#tree(tenantId, name, behind), readOnly, copyOnWrite }
  }

  async put(tenantId: string, name: string, input: VfsMountInput): Promise<VfsMount> {
    const { scratch, own } = this.#options
    if (!own.tenants.allows(tenantId))
      throw vfsErrors.invalidMount({ message: 'This server lets the tenant have no mounts of its own.' })
    if (name === scratch || this.#sharedWith(tenantId, name))
      throw vfsErrors.invalidMount({ message: `There is a mount '${name}' of the installation; take another name.` })
    const wrong = this.#problemOf(tenantId, input)
    if (wrong) throw vfsErrors.invalidMount({ message: `The mount ${wrong}.` })
    await this.#turns.take(tenantId, async () => {
      const mounts = await this.#ownOf(tenantId)
      if (!mounts.has(name) && mounts.size >= own.most) {
        throw limitErrors.limitExceeded({
          message: `A tenant has at most ${own.most} mounts of its own.`,
          detail: { limit: 'own mounts', max: own.most },
        })
      }
      await this.#save(tenantId, new Map([...mounts, [name, input]]))
    })
    await this.#pool.forget(tenantId, name)
    return shown(name, behindOf(input), false)
  }

  /** Removes a tenant's own mount. Resolves to false if the tenant has none of this name. */
  async remove(tenantId: string, name: string): Promise<boolean> {
    const had = await this.#turns.take(tenantId, async () => {
      const mounts = await this.#ownOf(tenantId)
      if (!mounts.has(name)) return false
      await this.#save(tenantId, new Map([...mounts].filter(([one]) => one !== name)))
      return true
    })
    await this.#pool.forget(tenantId, name)
    return had
  }

  /** Frees the memory of an erased tenant. The file of its mounts is deleted with the tenant's folder. */
  forget(tenantId: string): void {
    this.#own.delete(tenantId)
  }

  /** Prepares the folders that all tenants share. */
  async start(): Promise<void> {
    for (const { kind, path = '', readOnly } of Object.values(this.#options.shared)) {
      if (kind === 'folder' && !readOnly && !path.includes('{tenant}')) await this.#folder(path, readOnly)
    }
  }

  close(): Promise<void> {
    return this.#pool.close()
  }

  async #find(tenantId: string, name: string): Promise<Behind | undefined> {
    const found = this.#sharedWith(tenantId, name)
    const input = found ? undefined : (await this.#ownOf(tenantId)).get(name)
    const behind = found ? { ...found, own: false } : input && behindOf(input)
    if (!behind) return undefined
    // Without an object store, a mount of the kind `objects` has nothing behind it and does not exist.
    return behind.kind === 'objects' && this.#options.store?.backend === undefined ? undefined : behind
  }

  /** The mount of the role file with this name. Undefined for a mount that is not for this tenant, as if it did not exist. */
  #sharedWith(tenantId: string, name: string): MountSettings | undefined {
    const { shared } = this.#options
    const found = Object.hasOwn(shared, name) ? shared[name] : undefined
    return found?.tenants.allows(tenantId) ? found : undefined
  }

  async #tree(tenantId: string, name: string, behind: Behind): Promise<Tree> {
    const prefix = withTenant(behind.prefix ?? '', tenantId)
    if (behind.kind === 'folder') {
      const { mostBytes: bytes, mostFiles: entries } = behind
      const { tree, use } = await this.#folder(withTenant(behind.path ?? '', tenantId), behind.readOnly)
      if (bytes === undefined && entries === undefined) return tree
      return countedTree(tree, async () => [await use.account({ bytes, entries })])
    }
    if (behind.kind === 's3') {
      const backend = await this.#pool.open(tenantId, name, {
        ...behind,
        prefix,
        reach: this.#reachOf(tenantId, behind),
      })
      return new ObjectTree(backend, tenantId, '')
    }
    return new ObjectTree(asBackend(this.#options.store!, this.#options.limitsOf), tenantId, prefix)
  }

  async #folder(path: string, readOnly: boolean): Promise<Folder> {
    const opening = this.#folders.get(path) ?? openFolder(path, readOnly)
    this.#folders.set(path, opening)
    opening.catch(() => this.#folders.delete(path))
    return opening
  }

  #reachOf(tenantId: string, { own, endpoint }: Behind): 'public' | 'network' {
    if (!own) return 'network'
    const isOurs = endpoint !== undefined && isOwnHost(this.#options.own.hosts, tenantId, new URL(endpoint))
    return isOurs ? 'network' : 'public'
  }

  #problemOf(tenantId: string, input: VfsMountInput): string | undefined {
    const { kind, prefix = '', bucket, endpoint, accessKeyId, secretAccessKey } = input
    if (!isVfsPrefix(prefix) || (prefix !== '' && !isPlain(prefix))) return 'has a prefix that no path can begin with'
    if (kind === 'objects') {
      return (bucket ?? endpoint ?? accessKeyId ?? secretAccessKey)
        ? 'is of the objects, which have no bucket and no credentials'
        : undefined
    }
    if (!bucket) return 'needs a bucket'
    for (const reference of [accessKeyId, secretAccessKey]) {
      if (secretOf(reference ?? '') === undefined) {
        return 'needs accessKeyId and secretAccessKey, each as secret://name; create the secrets with POST /api/secrets'
      }
    }
    if (endpoint !== undefined && !URL.canParse(endpoint)) return 'has an endpoint that is no URL'
    return this.#pool.problemOf({ ...behindOf(input), prefix, reach: this.#reachOf(tenantId, behindOf(input)) })
  }

  #ownOf(tenantId: string): Promise<Map<string, VfsMountInput>> {
    const loading = this.#own.get(tenantId) ?? load(this.#fileOf(tenantId))
    this.#own.set(tenantId, loading)
    loading.catch(() => this.#own.delete(tenantId))
    return loading
  }
  async #save(tenantId: string, mounts: Map<string, VfsMountInput>): Promise<void> {
    this.#own.set(tenantId, Promise.resolve(mounts))
    try {
      await writeWhole(this.#fileOf(tenantId), JSON.stringify(Object.fromEntries(mounts)))
    } catch (error) {
      this.#own.delete(tenantId)
      throw error
    }
  }
  #fileOf(tenantId: string): string {
    return join(this.#options.dir, 'tenants', `+${tenantId}`, 'mounts.json')
  }
}

const withTenant = (text: string, tenantId: string): string => text.replaceAll('{tenant}', tenantId)
/** A prefix may end within a segment. A segment such as `..`, which has a meaning in a path, is not allowed. */
const isPlain = (prefix: string): boolean =>
  prefix
    .replace(/\/$/, '')
    .split('/')
    .every((part) => part !== '' && part !== '.' && part !== '..')

const behindOf = ({
  kind,
  prefix = '',
  readOnly = false,
  copyOnWrite = false,
  region = 'us-east-1',
  ...rest
}: VfsMountInput): Behind => ({
  kind,
  prefix,
  readOnly,
  copyOnWrite,
  region,
  ...rest,
  own: true,
})

const shown = (name: string, { kind, readOnly, copyOnWrite, own }: Behind, inSession: boolean): VfsMount => ({
  name,
  kind,
  readOnly: readOnly && !(copyOnWrite && inSession),
  copyOnWrite,
  own,
})

async function openFolder(path: string, readOnly: boolean): Promise<Folder> {
  const tree = new FolderTree(path)
  const folder = { tree, use: new FolderUse(tree) }
  if (readOnly) return folder
  try {
    await mkdir(path, { recursive: true, mode: 0o700 })
    await tree.tidy()
  } catch (cause) {
    throw vfsErrors.mountUnavailable({ message: 'The folder of the mount cannot be used.', retryable: true, cause })
  }
  return folder
}

async function load(file: string): Promise<Map<string, VfsMountInput>> {
  const text = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return '{}'
    throw error
  })
  return new Map(Object.entries(JSON.parse(text) as Record<string, VfsMountInput>))
}

/** Adapts the object store to the interface of a backend. The store enforces the limits of tenants. */
const asBackend = (store: ObjectStore, limitsOf: Options['limitsOf']): ConstructorParameters<typeof ObjectTree>[0] => ({
  open: (tenantId, key) => store.open(tenantId, key),
  list: (tenantId, query) => store.list(tenantId, query),
  async put(tenantId, key, { body, contentType, when }) {
    const limits = await limitsOf(tenantId)
    const { info, created } = await store.put(tenantId, key, { body, contentType, when, limits })
    return { info, replaced: created ? undefined : 0 }
  },
  async remove(tenantId, key, ifMatch) {
    const found = await store.open(tenantId, key)
    await found?.close()
    if (!found) return undefined
    if (!(await store.remove(tenantId, key, ifMatch))) return undefined
    return found.info.bytes
  },
})
