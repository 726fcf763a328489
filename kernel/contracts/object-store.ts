import { capability, type PluginContext, type PluginSpec, definePlugin, type Plugin, slot } from '../plugin.ts'
import type { StaticDecode, TObject } from '@sinclair/typebox'
import { errorTable } from './errors.ts'
import type { Limits } from './limits.ts'

/** The largest object that is stored. Specification 4.16. */
export const maxObjectBytes = 8 * 1024 * 1024
/** The most objects of one page, and of one deletion of a prefix. Specification 4.16. */
export const mostObjectsAtOnce = 1_000
export const maxKeyBytes = 1_024

export const objectErrors = errorTable('storage', {
  invalidKey: {
    status: 400,
    message:
      "An object cannot have this key. A key has 1 to 1024 bytes of UTF-8 without control characters, in segments between '/' none of which is empty, '.' or '..'.",
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
/** The last character of all, which no key holds: behind it ends whatever begins with the same text. */
export const lastCharacter = '\u{10ffff}'

/** True for what an object may be called: it can be part of a path or a URL without meaning anything there. */
export const isObjectKey = (key: string): boolean =>
  isKeyPrefix(key) && key !== '' && key.split('/').every((part) => part !== '' && part !== '.' && part !== '..')

/** True for the beginning of a key; '' is the beginning of all. */
export const isKeyPrefix = (prefix: string): boolean =>
  prefix.isWellFormed() && Buffer.byteLength(prefix) <= maxKeyBytes && !control.test(prefix)

export interface ObjectInfo {
  readonly key: string
  readonly bytes: number
  readonly contentType: string
  /** SHA-256 in hex; absent for what another program put into the store. */
  readonly sha256?: string
  /** ISO 8601. */
  readonly updatedAt: string
  /** Changes with the content. */
  readonly etag: string
}

/** The condition on the existing object for a write: `ifMatch` its etag or '*', `ifNoneMatch` that there is none. */
export interface WriteCondition {
  readonly ifMatch?: string
  readonly ifNoneMatch?: '*'
}

/** An object that is about to be stored. Its bytes are read once, and a throw of them means that nothing is stored. */
export interface NewObject {
  readonly body: AsyncIterable<Uint8Array>
  /** SHA-256 in hex of all of `body`, once it has been read. */
  readonly sha256: () => string
  readonly contentType: string
  readonly when: WriteCondition
}

/** From and to which byte, both included. */
export interface ByteRange {
  readonly from: number
  readonly to: number
}

/** Bytes as they are read: a Readable of Node is one. Destroyed, it lets go of everything. */
export type ObjectBody = AsyncIterable<Uint8Array> & { destroy(): unknown }

/** An object, or another file, that was found: what is read of it is of this content, or the reading fails. Read it once, or close it. */
export interface OpenObject<Info = ObjectInfo> {
  readonly info: Info
  /** All of it unless a range is given. */
  read(range?: ByteRange): Promise<ObjectBody>
  close(): Promise<void>
}

export interface ObjectQuery {
  readonly prefix: string
  /** Only keys behind this text, in the order of their UTF-8. */
  readonly after: string
  readonly limit: number
  /** Keys that have a '/' behind the prefix are told as one, up to it. */
  readonly folders: boolean
}

export interface ObjectPage {
  readonly objects: readonly ObjectInfo[]
  readonly prefixes: readonly string[]
  /** `after` of the next page; absent for the last one. */
  readonly next?: string
}

export interface StoreUse {
  readonly bytes: number
  readonly objects: number
}

/**
 * Where objects are. Each tenant has keys of its own; whoever calls has checked the keys. What is written is there in full and stays, or
 * not at all: a reader sees the old object or the new one. Rejects with `objectErrors`. Tests: `testObjectBackend` of kernel/testing.
 */
export interface ObjectBackend {
  /** Resolves to the new object, and the bytes of the one that it replaced. Rejects with 412 when the condition does not hold. */
  put(tenantId: string, key: string, object: NewObject): Promise<{ info: ObjectInfo; replaced: number | undefined }>
  open(tenantId: string, key: string): Promise<OpenObject | undefined>
  list(tenantId: string, query: ObjectQuery): Promise<ObjectPage>
  /** Resolves to the bytes that it had; undefined when there is none. Rejects with 412 when it is another than `ifMatch` says. */
  remove(tenantId: string, key: string, ifMatch?: string): Promise<number | undefined>
  /** Removes up to `most` objects whose keys begin like that; `more` when others are left. */
  removeAll(tenantId: string, prefix: string, most: number): Promise<StoreUse & { readonly more: boolean }>
  /** Counts all that a tenant has. */
  use(tenantId: string): Promise<StoreUse>
  /** Throws a sentence where the store says that its settings are wrong; resolves when it cannot be reached. Called before the role starts. */
  verify?(): Promise<void>
}
export const ObjectBackends = slot<ObjectBackend>('storage.backends')

type Backend<C extends TObject> = Pick<PluginSpec<C, Record<never, never>, Record<never, never>>, 'name' | 'config'> & {
  /** Undefined when its settings leave it out. */
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

/** Opens objects in any folder, beside the store that is for everybody. */
export interface ObjectFolders {
  /** Only one process may have a folder open. What a killed one left half written is cleared. */
  open(dir: string): Promise<ObjectBackend>
}
export const ObjectFolders = capability<ObjectFolders>('core.object-folders')

export interface BucketSettings {
  /** AWS in the region by default. */
  readonly endpoint?: string | undefined
  readonly region: string
  readonly bucket: string
  /** How all keys begin; nothing else is seen. */
  readonly prefix: string
  readonly accessKeyId: string
  readonly secretAccessKey: string
  /** `public`: over TLS, and only addresses of the open internet. `network`: also those that a server of the operator's own may have. */
  readonly reach: 'public' | 'network'
}

/** Opens S3 buckets that are named at run time. */
export interface Buckets {
  /** Throws a sentence when the endpoint may not be asked. Keys are the same whatever the tenant. */
  open(settings: BucketSettings): ObjectBackend & {
    /** Ends its connections, once what is under way is done. */
    close(): Promise<void>
  }
}
export const Buckets = capability<Buckets>('core.buckets')

export interface Upload {
  readonly body: AsyncIterable<Uint8Array>
  /** As many as it says that it has. */
  readonly bytes?: number | undefined
  readonly contentType: string
  readonly when?: WriteCondition
  /** What the tenant may have together, for a process that does not know the limits of tenants: a runner has them with each run. */
  readonly limits?: Pick<Limits, 'objects' | 'objectBytes'> | undefined
  /** What the bytes have to come to, in hex. */
  readonly checksums?: { readonly sha256?: string; readonly md5?: string }
}

/** The objects of tenants, with keys checked and limits kept. Rejects with `objectErrors`, 409 `limit_exceeded` and 413. */
export interface ObjectStore {
  /** The name of the backend; undefined where there is none, and then all else rejects. */
  readonly backend: string | undefined
  /** `replaced`: the bytes of what was in its place, where something was. */
  put(
    tenantId: string,
    key: string,
    upload: Upload,
  ): Promise<{ readonly info: ObjectInfo; readonly created: boolean; readonly replaced?: number | undefined }>
  open(tenantId: string, key: string): Promise<OpenObject | undefined>
  list(tenantId: string, query: Partial<ObjectQuery>): Promise<ObjectPage>
  remove(tenantId: string, key: string, ifMatch?: string): Promise<boolean>
  /** Removes what begins with `prefix`: 1000 objects at most, `more` when others are left. */
  removeAll(tenantId: string, prefix: string): Promise<{ readonly deleted: number; readonly more: boolean }>
}
export const ObjectStore = capability<ObjectStore>('core.object-store')
