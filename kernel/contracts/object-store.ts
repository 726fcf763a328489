import { capability, type PluginContext, type PluginSpec, definePlugin, type Plugin, slot } from '../plugin.ts'
import type { StaticDecode, TObject } from '@sinclair/typebox'
import { errorTable } from './errors.ts'
import type { Limits } from './limits.ts'

/** The largest object that is stored. Specification 4.16. */
export const maxObjectBytes = 8 * 1024 * 1024
/** The most objects of one page, and of one deletion by prefix. Specification 4.16. */
export const mostObjectsAtOnce = 1_000
export const maxKeyBytes = 1_024
/** Each segment may be a folder of a disk, which no limit of objects or bytes counts. */
export const mostSegments = 32

export const objectErrors = errorTable('storage', {
  invalidKey: {
    status: 400,
    message:
      "An object cannot have this key. A key has 1 to 1024 bytes of UTF-8 without control characters, in at most 32 segments between '/' none of which is empty, '.' or '..'.",
  },
  checksumMismatch: {
    status: 400,
    message: 'The bytes that arrived do not match the checksum; nothing was stored. Send them again.',
  },
  invalidChecksum: {
    status: 400,
    message: 'A checksum is x-checksum-sha256 in hex or base64, Content-MD5 in base64, or Digest with sha-256 or md5.',
  },
  uploadBroken: {
    status: 400,
    retry: true,
    message: 'The upload was incomplete; nothing was stored. Send it again.',
  },
  preconditionFailed: {
    status: 412,
    message: 'The object does not satisfy If-Match or If-None-Match; nothing was changed.',
  },
  rangeNotSatisfiable: { status: 416, message: 'The object has no such bytes; Content-Range says how many it has.' },
  storageUnavailable: {
    status: 503,
    retry: true,
    message: 'The object store does not answer; try again.',
  },
  storageMisconfigured: {
    status: 503,
    retry: 'later',
    about:
      'The object store refuses requests because its key, bucket or region, or the clock of this server is wrong. The message says which; correct the settings.',
  },
  storageNotConfigured: {
    status: 503,
    message: 'This server has no object store; its operator can set AGENT_ORC_STORAGE_DIR or AGENT_ORC_S3_BUCKET.',
  },
  storageFull: {
    status: 507,
    retry: 'later',
    message: 'The object store is full; nothing of the object was stored.',
  },
})

const control = /[\p{Cc}\p{Noncharacter_Code_Point}]/u
/** The last Unicode character, which no key contains. Appended to a prefix, it sorts after every key with that prefix. */
export const lastCharacter = '\u{10ffff}'

/** True for a valid object key: it can be part of a path or a URL without a special meaning there. */
export const isObjectKey = (key: string): boolean =>
  isKeyPrefix(key) && key.split('/').every((part) => part !== '' && part !== '.' && part !== '..')
/** True for a key under which an object may be stored. What has more segments is from before they were bounded, and is still read and deleted. */
export const isNewObjectKey = (key: string): boolean => isObjectKey(key) && key.split('/').length <= mostSegments

/** True for a valid beginning of a key. Empty is the beginning of all keys. */
export const isKeyPrefix = (prefix: string): boolean =>
  prefix.isWellFormed() && Buffer.byteLength(prefix) <= maxKeyBytes && !control.test(prefix)

export interface ObjectInfo {
  readonly key: string
  readonly bytes: number
  readonly contentType: string
  /** SHA-256 in hex. Absent for an object that another program stored. */
  readonly sha256?: string
  /** ISO 8601. */
  readonly updatedAt: string
  /** Changes whenever the content changes. */
  readonly etag: string
}

/** The condition of a write on the existing object: `ifMatch` its etag, or '*' for any; `ifNoneMatch` that no object exists. */
export interface WriteCondition {
  readonly ifMatch?: string
  readonly ifNoneMatch?: '*'
}

/** An object to store. Its bytes are read once; if reading them throws, nothing is stored. */
export interface NewObject {
  readonly body: AsyncIterable<Uint8Array>
  /** SHA-256 in hex of the whole `body`. Call it after the body has been read. */
  readonly sha256: () => string
  readonly contentType: string
  readonly when: WriteCondition
}

/** First and last byte, both included. */
export interface ByteRange {
  readonly from: number
  readonly to: number
}

/** Bytes in the order in which they are read; a Node Readable qualifies. Destroying it releases all its resources. */
export type ObjectBody = AsyncIterable<Uint8Array> & { destroy(): unknown }

/** An open object, or another file. Every read is of this content, or fails. Read it once, or close it. */
export interface OpenObject<Info = ObjectInfo> {
  readonly info: Info
  /** Reads everything unless a range is given. */
  read(range?: ByteRange): Promise<ObjectBody>
  close(): Promise<void>
}

export interface ObjectQuery {
  readonly prefix: string
  /** Only keys after this text, in the order of their UTF-8 bytes. */
  readonly after: string
  readonly limit: number
  /** True: keys with a '/' after the prefix are reported once per folder, up to that '/'. */
  readonly folders: boolean
}

export interface ObjectPage {
  readonly objects: readonly ObjectInfo[]
  readonly prefixes: readonly string[]
  /** The value of `after` for the next page. Absent on the last page. */
  readonly next?: string
}

export interface StoreUse {
  readonly bytes: number
  readonly objects: number
}

/**
 * A store for objects. Each tenant has its own keys; the caller has checked them. A write is complete and durable or does not happen: a reader sees
 * the old object or the new one. Rejects with `objectErrors`. Tests: `testObjectBackend` of kernel/testing.
 */
export interface ObjectBackend {
  /** Resolves to the new object, and the bytes of the one that it replaced. Rejects with 412 when the condition does not hold. */
  put(tenantId: string, key: string, object: NewObject): Promise<{ info: ObjectInfo; replaced: number | undefined }>
  open(tenantId: string, key: string): Promise<OpenObject | undefined>
  list(tenantId: string, query: ObjectQuery): Promise<ObjectPage>
  /**
   * Resolves to the bytes of the removed object; undefined when there was none. Rejects with 412 when its etag is not `ifMatch`, and when `signal`
   * aborts, after which no removal is begun.
   */
  remove(tenantId: string, key: string, ifMatch?: string, signal?: AbortSignal): Promise<number | undefined>
  /**
   * Removes up to `most` objects whose keys begin with `prefix`. `more`: others remain. When `signal` aborts, or a removal fails, it resolves to what is
   * gone by then, or rejects if that is nothing; no removal is begun any more.
   */
  removeAll(
    tenantId: string,
    prefix: string,
    most: number,
    signal?: AbortSignal,
  ): Promise<StoreUse & { readonly more: boolean }>
  /** Counts all objects of a tenant. */
  use(tenantId: string): Promise<StoreUse>
  /** Throws a sentence when the store says that its settings are wrong. Resolves when the store cannot be reached. Called before the role starts. */
  verify?(): Promise<void>
}
export const ObjectBackends = slot<ObjectBackend>('storage.backends')

type Backend<C extends TObject> = Pick<PluginSpec<C, Record<never, never>, Record<never, never>>, 'name' | 'config'> & {
  /** Undefined when the settings leave the backend out. */
  create(ctx: PluginContext<StaticDecode<C>, Record<never, never>>): Promise<ObjectBackend | undefined>
}

/** A plugin that is a backend, in the slot under its name. */
export const defineObjectBackend = <C extends TObject>({ name, config, create }: Backend<C>): Plugin =>
  definePlugin({
    name: `storage-${name}`,
    config,
    errors: objectErrors,
    provides: { backends: ObjectBackends },
    async setup(ctx) {
      const backend = await create(ctx as Parameters<typeof create>[0])
      return { backends: backend ? { [name]: backend } : {} }
    },
  })

/** Opens objects in any folder, independently of the shared store. */
export interface ObjectFolders {
  /** Only one process may have a folder open. Half-written files of a killed process are removed. */
  open(dir: string): Promise<ObjectBackend>
}
export const ObjectFolders = capability<ObjectFolders>('core.object-folders')

export interface BucketSettings {
  /** AWS in the region by default. */
  readonly endpoint?: string | undefined
  readonly region: string
  readonly bucket: string
  /** The beginning of all keys. Objects outside it are invisible. */
  readonly prefix: string
  readonly accessKeyId: string
  readonly secretAccessKey: string
  /** `public`: TLS only, and only addresses of the open internet. `network`: also addresses of the operator's own servers. */
  readonly reach: 'public' | 'network'
  /** The folder in which uploads wait until they are whole. No other process uses it: whoever opens buckets empties it at its start. */
  readonly uploads: string
}

/** Opens S3 buckets that are named at run time. */
export interface Buckets {
  /** Throws a sentence when the endpoint must not be contacted. Keys do not depend on the tenant. */
  open(settings: BucketSettings): ObjectBackend & {
    /** Closes the connections after the requests under way. */
    close(): Promise<void>
  }
}
export const Buckets = capability<Buckets>('core.buckets')

export interface Upload {
  readonly body: AsyncIterable<Uint8Array>
  /** The announced number of bytes. */
  readonly bytes?: number | undefined
  readonly contentType: string
  readonly when?: WriteCondition
  /** The tenant's limits, for a process that does not know them: a runner gets them with each run. */
  readonly limits?: Pick<Limits, 'objects' | 'objectBytes'> | undefined
  /** The expected checksums of the bytes, in hex. */
  readonly checksums?: { readonly sha256?: string; readonly md5?: string }
}

/** The objects of tenants, with checked keys and enforced limits. Rejects with `objectErrors`, 409 `limit_exceeded` and 413. */
export interface ObjectStore {
  /** The name of the backend. Undefined: there is none, and every call rejects. */
  readonly backend: string | undefined
  /** `replaced`: the bytes of the object that was replaced, if there was one. */
  put(
    tenantId: string,
    key: string,
    upload: Upload,
  ): Promise<{ readonly info: ObjectInfo; readonly created: boolean; readonly replaced?: number | undefined }>
  open(tenantId: string, key: string): Promise<OpenObject | undefined>
  list(tenantId: string, query: Partial<ObjectQuery>): Promise<ObjectPage>
  /** As that of the backend. Resolves to false when there was no such object. */
  remove(tenantId: string, key: string, ifMatch?: string, signal?: AbortSignal): Promise<boolean>
  /** As that of the backend, of up to 1000 objects. */
  removeAll(
    tenantId: string,
    prefix: string,
    signal?: AbortSignal,
  ): Promise<{ readonly deleted: number; readonly more: boolean }>
}
export const ObjectStore = capability<ObjectStore>('core.object-store')
