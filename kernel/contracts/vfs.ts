import { type Static, Type } from '@sinclair/typebox'
import { clientIdPattern } from './ids.ts'
import { errorTable } from './errors.ts'
import { isKeyPrefix, isNewObjectKey, isObjectKey, maxKeyBytes } from './object-store.ts'

export const vfsErrors = errorTable('vfs', {
  invalidPath: {
    status: 400,
    message:
      "A path is 1 to 1024 bytes of UTF-8 in segments between '/', at most 32 for a file that is written, none of which is empty, '.' or '..', without backslashes and control characters.",
  },
  invalidMount: { status: 400, about: 'The mount cannot be created in this form; the sentence says why.' },
  mountNotAllowed: {
    status: 403,
    about: "The session's lease does not allow this mount; the sentence names the mounts that it allows.",
  },
  readOnlyMount: { status: 403, message: 'This mount is read-only.' },
  /** Another tenant's session gets the same answer. Specification 4.7. */
  noVfsSession: {
    code: 'no vfs session',
    status: 404,
    message: 'This session has no VirtualFS lease: it was never opened, or is closed.',
  },
  isFolder: { status: 409, message: 'A folder has this name, so no file can have it.' },
  isFile: { status: 409, message: 'Part of the path is a file, so nothing can be below it.' },
  mountUnavailable: {
    status: 503,
    retry: 'as-said',
    about: 'The storage of the mount does not answer, or its credentials cannot be read; the sentence says which.',
  },
  /** Specification 4.18. */
  vfsUpstreamUnavailable: {
    code: 'vfs upstream unavailable',
    status: 502,
    retry: 'later',
    message: 'The VirtualFS server cannot be reached, or its answer broke off; try again.',
  },
})

/** The header that selects the view of a session: its scratch space, its copy-on-write layers, and only the mounts of its lease. */
export const vfsSessionHeader = 'x-vfs-session'
/** The header with the SHA-256 of the body in hex, or `stream` for a body that is not known in advance. It is part of the signature. */
export const vfsDigestHeader = 'x-vfs-content-sha256'
export const streamDigest = 'stream'

/**
 * What is signed (family `vfs`) in place of the body. Bodies are streams of any length, and the signed session must not be exchanged. Both texts
 * are those of the headers; empty for a header that is not sent.
 */
export const signedForm = (session: string, digest: string): Uint8Array => Buffer.from(`${session}\n${digest}`)

const mountPattern = '^[a-z0-9][a-z0-9_-]{0,62}$'
const mountForm = new RegExp(mountPattern)
export const isMountName = (text: string): boolean => mountForm.test(text)
export const mountName = Type.String({ pattern: mountPattern, description: 'Name of the mount.' })

/** True for the path of a file below a mount. It can be part of a URL or a path without a special meaning there. */
export const isVfsPath = (path: string): boolean => isObjectKey(path) && !path.includes('\\')
/** True for a path under which a file may be written. Deeper ones are from before the bound, and are still read, listed and deleted. */
export const isNewVfsPath = (path: string): boolean => isNewObjectKey(path) && isVfsPath(path)
/** True for an empty path, and for the path of a folder without a trailing '/'. */
export const isVfsFolder = (path: string): boolean => path === '' || isVfsPath(path)
/** True for a valid beginning of a path. */
export const isVfsPrefix = (path: string): boolean => isKeyPrefix(path) && !path.includes('\\')
export const maxPathBytes = maxKeyBytes

/** A file with this name represents an empty folder: sandboxes have empty folders, and mounts know only folders with files. */
export const emptyFolder = '.agent-orc-folder'
/** The empty folder that a path represents. Undefined for the path of an ordinary file. */
export const folderOf = (path: string): string | undefined =>
  path.endsWith(`/${emptyFolder}`) ? path.slice(0, -emptyFolder.length - 1) : undefined

/** How the content type of a file marks it as executable, because mounts keep types but no modes. */
const executable = 'executable=1'
export const isExecutable = (contentType: string | undefined): boolean =>
  contentType?.split(';').some((parameter) => parameter.trim() === executable) === true
export const asExecutable = (contentType: string): string =>
  isExecutable(contentType) ? contentType : `${contentType}; ${executable}`

/** The most entries of one page of a list, and of one deletion of a folder. */
export const mostEntriesAtOnce = 1_000

export const VfsMount = Type.Object({
  name: mountName,
  kind: Type.String({ description: 'Its storage: `objects`, `s3`, `folder` or `scratch`.' }),
  readOnly: Type.Boolean(),
  copyOnWrite: Type.Boolean({
    description: 'Writes and deletions of a session go into its own layer and end with it; the mount stays unchanged.',
  }),
  own: Type.Boolean({
    description: 'True for a mount of the tenant itself, which it can change; false for one of the installation.',
  }),
})
export type VfsMount = Static<typeof VfsMount>

/** A mount of a tenant. `s3` credentials must be `secret://name`. */
export const VfsMountInput = Type.Object(
  {
    kind: Type.Union([Type.Literal('objects'), Type.Literal('s3')]),
    prefix: Type.Optional(
      Type.String({
        maxLength: 512,
        description: 'Shows only keys with this prefix, without the prefix, e.g. `docs/`.',
      }),
    ),
    readOnly: Type.Optional(Type.Boolean({ default: false })),
    copyOnWrite: Type.Optional(Type.Boolean({ default: false })),
    bucket: Type.Optional(Type.String({ pattern: '^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$' })),
    endpoint: Type.Optional(
      Type.String({ maxLength: 512, description: 'https URL of the S3 service; AWS in the region by default.' }),
    ),
    region: Type.Optional(Type.String({ pattern: '^[a-z0-9-]{1,64}$' })),
    accessKeyId: Type.Optional(Type.String({ maxLength: 200, description: '`secret://name`.' })),
    secretAccessKey: Type.Optional(Type.String({ maxLength: 200, description: '`secret://name`.' })),
  },
  { additionalProperties: false },
)
export type VfsMountInput = Static<typeof VfsMountInput>

/** A file or a folder. A folder exists while it contains something. */
export const VfsEntry = Type.Object({
  path: Type.String({ description: 'Below the mount; without a `/` at its end.' }),
  kind: Type.Union([Type.Literal('file'), Type.Literal('folder')]),
  bytes: Type.Optional(Type.Integer({ description: 'Of a file.' })),
  contentType: Type.Optional(Type.String()),
  updatedAt: Type.Optional(Type.String({ format: 'date-time' })),
  etag: Type.Optional(
    Type.String({ description: 'Of a file: changes with its content; as in the header `ETag`, without quotes.' }),
  ),
})
export type VfsEntry = Static<typeof VfsEntry>

export const VfsList = Type.Object({
  entries: Type.Array(VfsEntry, { description: 'In the order of the UTF-8 of their paths.' }),
  cursor: Type.Optional(Type.String({ description: 'The cursor of the next page; absent for the last one.' })),
})
export type VfsList = Static<typeof VfsList>

export const VfsListQuery = Type.Object({
  recursive: Type.Optional(Type.Boolean({ default: false, description: 'All files below, and no folders.' })),
  cursor: Type.Optional(
    Type.String({ maxLength: 2_000, description: 'The cursor of the page before, of the same folder.' }),
  ),
  limit: Type.Optional(Type.Integer({ default: 200, minimum: 1, maximum: mostEntriesAtOnce })),
})
export type VfsListQuery = Static<typeof VfsListQuery>

export const VfsSearchQuery = Type.Object({
  q: Type.String({ minLength: 1, maxLength: 200, description: 'Text; upper and lower case are the same.' }),
  in: Type.Optional(
    Type.Union([Type.Literal('name'), Type.Literal('text'), Type.Literal('both')], {
      default: 'both',
      description: 'Whether the path has the text, or a line of the content.',
    }),
  ),
  mount: Type.Optional(mountName),
  path: Type.Optional(Type.String({ maxLength: maxPathBytes, description: 'Only below this folder of the mount.' })),
  limit: Type.Optional(Type.Integer({ default: 50, minimum: 1, maximum: 200 })),
})
export type VfsSearchQuery = Static<typeof VfsSearchQuery>

export const VfsMatch = Type.Object({
  mount: Type.String(),
  path: Type.String(),
  bytes: Type.Optional(Type.Integer()),
  line: Type.Optional(
    Type.Integer({
      description: 'Number of the first line with the text; absent if only the path matches.',
    }),
  ),
  text: Type.Optional(Type.String({ description: 'That line, at most 200 characters.' })),
})
export type VfsMatch = Static<typeof VfsMatch>
export const VfsMatches = Type.Object({
  matches: Type.Array(VfsMatch),
  complete: Type.Boolean({
    description: 'False: there are more matches, or more files than one search reads; narrow it by mount or path.',
  }),
})
export type VfsMatches = Static<typeof VfsMatches>

/** Limits of a tenant on the VirtualFS server. An absent limit is that of the server's role file. */
export const VfsLimits = Type.Object(
  {
    bytes: Type.Optional(
      Type.Integer({ minimum: 0, description: 'In scratch spaces and layers of all its sessions.' }),
    ),
    entries: Type.Optional(Type.Integer({ minimum: 0, description: 'Number of files in scratch space and layers.' })),
    sessions: Type.Optional(Type.Integer({ minimum: 0, description: 'Open at once.' })),
    objects: Type.Optional(Type.Integer({ minimum: 0, description: 'In its object store, for mounts over it.' })),
    objectBytes: Type.Optional(Type.Integer({ minimum: 0, description: 'Of these objects together.' })),
  },
  { additionalProperties: false },
)
export type VfsLimits = Static<typeof VfsLimits>

/** Body of `PUT /vfs/sessions/{id}`. */
export const OpenVfsSession = Type.Object(
  {
    profile: Type.Optional(Type.String({ maxLength: 128 })),
    runtime: Type.Optional(Type.String({ maxLength: 64 })),
    allowedMounts: Type.Optional(
      Type.Array(Type.String({ maxLength: 64 }), {
        maxItems: 100,
        description: 'Empty or absent: the session may use every mount.',
      }),
    ),
    /** The limits that the conductor of the tenant's newest run stated. */
    limits: Type.Optional(VfsLimits),
  },
  { additionalProperties: false },
)
export type OpenVfsSession = Static<typeof OpenVfsSession>

/** A session that is open on the server: its lease, and what it has written. */
export const VfsSession = Type.Object({
  sessionId: Type.String({ pattern: clientIdPattern }),
  profile: Type.Optional(Type.String()),
  runtime: Type.Optional(Type.String()),
  allowedMounts: Type.Array(Type.String(), { description: 'Empty: every mount.' }),
  state: Type.Literal('open'),
  openedAt: Type.String({ format: 'date-time' }),
  lastUsedAt: Type.String({ format: 'date-time' }),
  bytes: Type.Integer({ description: 'In its scratch space and its layers.' }),
  entries: Type.Integer({ description: 'Number of files in scratch space and layers.' }),
})
export type VfsSession = Static<typeof VfsSession>

const vfsOperations = ['read', 'write', 'delete', 'list', 'search'] as const
/** One operation of a session. */
export const VfsAccess = Type.Object({
  at: Type.String({ format: 'date-time' }),
  operation: Type.Union(vfsOperations.map((one) => Type.Literal(one))),
  mount: Type.Optional(Type.String()),
  path: Type.Optional(Type.String()),
  bytes: Type.Optional(Type.Integer({ description: 'That were read or written.' })),
  outcome: Type.String({ description: '`ok`, or the code of the error.' }),
})
export type VfsAccess = Static<typeof VfsAccess>
export const VfsAudit = Type.Object({
  entries: Type.Array(VfsAccess, { description: 'The newest first.' }),
  cursor: Type.Optional(Type.String({ description: 'The cursor of the next, older page; absent for the last one.' })),
})
export type VfsAudit = Static<typeof VfsAudit>

export const VfsUsage = Type.Object({
  bytes: Type.Integer({ description: 'In scratch spaces and layers of its sessions.' }),
  entries: Type.Integer({ description: 'Number of files in scratch space and layers.' }),
  sessions: Type.Integer({ description: 'Open.' }),
})
export type VfsUsage = Static<typeof VfsUsage>

/** Body of `PUT /vfs/tenant/hold`. */
export const VfsHold = Type.Object(
  { held: Type.Boolean({ description: 'True: nothing of the tenant is deleted by age, until it is said otherwise.' }) },
  { additionalProperties: false },
)

/** A view of the file system. Without a session it shows the tenant's mounts, without scratch space and layers. */
export interface VfsView {
  readonly tenantId: string
  readonly sessionId?: string
}

export interface VfsFile {
  readonly entry: VfsEntry
  /** Read it to its end, or call `return()`, because it holds a connection. */
  readonly body: AsyncIterable<Uint8Array>
}

export interface VfsWrite {
  /** Bytes, or a stream of them that is sent as it is read. */
  readonly body: Uint8Array | AsyncIterable<Uint8Array>
  readonly contentType?: string
  /** An etag, or '*': write only over an existing file. */
  readonly ifMatch?: string
  /** Write only where no file exists yet. */
  readonly ifNoneMatch?: '*'
}

interface Asked {
  readonly signal?: AbortSignal | undefined
}

/**
 * The VirtualFS server as its clients see it. All reject with AppErrors: those of `vfsErrors`, `objectErrors`, `limit_exceeded`, 413, and
 * `vfs upstream unavailable` (502) when it cannot be reached. Made by `createVfsClient` of plugins/vfs/client.ts.
 */
export interface VfsClient {
  /** Opens a session. If it is already open, renews its lease and keeps its files. */
  open(tenantId: string, sessionId: string, lease: OpenVfsSession, asked?: Asked): Promise<VfsSession>
  /** Deletes the session's scratch space and layers. Closing a session that is not open is no error. */
  close(tenantId: string, sessionId: string, asked?: Asked): Promise<void>
  session(tenantId: string, sessionId: string, asked?: Asked): Promise<VfsSession | undefined>
  mounts(view: VfsView, asked?: Asked): Promise<readonly VfsMount[]>
  /** An empty `path` is the mount itself. */
  list(view: VfsView, mount: string, path: string, asked?: Asked & VfsListQuery): Promise<VfsList>
  /** Undefined when there is no such file. `range` includes both bytes; a range beyond the end is 416. */
  read(
    view: VfsView,
    mount: string,
    path: string,
    asked?: Asked & { readonly range?: { readonly from: number; readonly to?: number } },
  ): Promise<VfsFile | undefined>
  write(view: VfsView, mount: string, path: string, file: VfsWrite, asked?: Asked): Promise<VfsEntry>
  /** False when there was no such file. */
  remove(view: VfsView, mount: string, path: string, asked?: Asked & { readonly ifMatch?: string }): Promise<boolean>
  /** Removes up to 1000 files below a folder. `more`: others remain. */
  removeFolder(
    view: VfsView,
    mount: string,
    path: string,
    asked?: Asked,
  ): Promise<{ readonly deleted: number; readonly more: boolean }>
  search(view: VfsView, query: VfsSearchQuery, asked?: Asked): Promise<VfsMatches>
  usage(tenantId: string, asked?: Asked): Promise<VfsUsage>
  /** Sets or lifts the legal hold of a tenant on the server, which keeps it over restarts. */
  hold(tenantId: string, held: boolean, asked?: Asked): Promise<void>
  /** Deletes a part of the server's data of a tenant per call. The storage of the tenant's mounts is not deleted. */
  erase(tenantId: string, asked?: Asked): Promise<{ readonly deleted: number; readonly more: boolean }>
  dispose(): Promise<void>
}
