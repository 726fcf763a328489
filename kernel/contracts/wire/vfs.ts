import { type TSchema, Type } from '@sinclair/typebox'
import { vfsService } from '../auth.ts'
import { httpErrors, invalidRequest, notFound } from '../http-errors.ts'
import { clientIdPattern } from '../ids.ts'
import { limitErrors } from '../limits.ts'
import { mostSegments, objectErrors } from '../object-store.ts'
import { retentionErrors } from '../retention.ts'
import * as vfs from '../vfs.ts'
import { vfsErrors } from '../vfs.ts'
import type { Wire } from './route.ts'

// The requests of runners and conductors to a VirtualFS server. Specification 4.18, 5.3: each is signed with the key family `vfs`.

const of = (group: string) => ({ access: vfsService, tags: [group] as readonly string[] })
const inGet = <S extends TSchema>(json: S) => ({ method: 'GET', reply: { status: 200, json } }) as const

const view = Type.Object({
  [vfs.vfsSessionHeader]: Type.Optional(
    Type.String({
      pattern: clientIdPattern,
      description: 'The session whose view to use; by default the mounts without a session.',
    }),
  ),
  [vfs.vfsDigestHeader]: Type.Optional(
    Type.String({
      pattern: `^([0-9a-f]{64}|${vfs.streamDigest})$`,
      description: 'SHA-256 of the body, or `stream`; absent without a body.',
    }),
  ),
})
const text = (description: string) => Type.Optional(Type.String({ maxLength: 500, description }))
const known = { 'if-match': text('Only if the file matches: its `ETag`, or `*` for any.') }
const reading = Type.Object({
  ...view.properties,
  range: text('Bytes from and to, both included: `bytes=0-99`, `bytes=100-`, `bytes=-100`.'),
  'if-none-match': text('304 if the file still has this `ETag`.'),
  'if-range': text('The range if the file has this `ETag`, otherwise the whole file.'),
})
const writing = Type.Object({
  ...view.properties,
  ...known,
  'if-none-match': text('`*`: only if there is no file yet.'),
  'content-type': text('Its content type, if the mount stores types.'),
})
const removing = Type.Object({ ...view.properties, ...known })
const inMount = Type.Object({
  mount: vfs.mountName,
  '*': Type.String({
    maxLength: vfs.maxPathBytes + 1,
    description: `The path below the mount; that of a file that is written has ${mostSegments} segments at most.`,
  }),
})
const oneMount = Type.Object({ mount: vfs.mountName })
const oneSession = Type.Object({ id: Type.String({ pattern: clientIdPattern }) })

const seen = [
  notFound,
  vfsErrors.invalidPath,
  vfsErrors.mountNotAllowed,
  vfsErrors.noVfsSession,
  vfsErrors.mountUnavailable,
  limitErrors.limitReached,
  objectErrors.storageUnavailable,
  objectErrors.storageMisconfigured,
]
const written = [
  ...seen,
  vfsErrors.readOnlyMount,
  vfsErrors.isFolder,
  vfsErrors.isFile,
  objectErrors.preconditionFailed,
  objectErrors.storageFull,
  objectErrors.invalidKey,
  limitErrors.limitExceeded,
]

export const vfsWire = {
  mounts: {
    ...of('mounts'),
    ...inGet(Type.Array(vfs.VfsMount)),
    path: '/vfs/mounts',
    summary: 'List mounts',
    description: 'The mounts of the tenant, or those that the lease of a session allows, with its scratch space.',
    headers: view,
    errors: [vfsErrors.noVfsSession],
  },
  putMount: {
    ...of('mounts'),
    method: 'PUT',
    path: '/vfs/mounts/:mount',
    summary: 'Create or replace a mount of the tenant',
    description: 'For its objects, or for its own bucket. A mount of the installation cannot be replaced.',
    params: oneMount,
    headers: view,
    body: vfs.VfsMountInput,
    reply: { status: 200, json: vfs.VfsMount },
    errors: [invalidRequest, vfsErrors.invalidMount, limitErrors.limitExceeded],
  },
  deleteMount: {
    ...of('mounts'),
    method: 'DELETE',
    path: '/vfs/mounts/:mount',
    summary: 'Delete a mount of the tenant',
    description: 'Its storage is not deleted.',
    params: oneMount,
    headers: view,
    reply: { status: 204 },
    errors: [notFound],
    absent: true,
  },
  list: {
    ...of('files'),
    ...inGet(vfs.VfsList),
    path: '/vfs/list/:mount/*',
    summary: 'List a folder',
    description: 'An empty path is the mount itself. A folder without files does not exist: its list is empty.',
    params: inMount,
    query: vfs.VfsListQuery,
    headers: view,
    errors: [invalidRequest, ...seen],
  },
  /** Like `list` without a path, for clients that leave out the last slash. */
  listMount: {
    ...of('files'),
    ...inGet(vfs.VfsList),
    path: '/vfs/list/:mount',
    summary: 'List a mount',
    params: oneMount,
    query: vfs.VfsListQuery,
    headers: view,
    errors: [invalidRequest, ...seen],
  },
  read: {
    ...of('files'),
    method: 'GET',
    path: '/vfs/files/:mount/*',
    summary: 'Read a file',
    description: 'With `ETag`, `If-None-Match`, `Range` and `If-Range`, as it is read.',
    params: inMount,
    headers: reading,
    reply: { status: 200, file: 'The bytes, in the type that they were written with.' },
    errors: [...seen, vfsErrors.isFolder, objectErrors.rangeNotSatisfiable],
    absent: notFound.row.code,
  },
  write: {
    ...of('files'),
    method: 'PUT',
    path: '/vfs/files/:mount/*',
    summary: 'Write a file',
    description:
      'The body is the file, of any length that the server allows. It replaces an existing file, unless `If-Match` or `If-None-Match: *` forbids it. An incomplete body changes nothing. 201 for a new file.',
    params: inMount,
    headers: writing,
    streams: true,
    reply: { status: 200, json: vfs.VfsEntry, created: true },
    errors: [...written, objectErrors.uploadBroken, objectErrors.checksumMismatch, httpErrors.bodyTooLarge],
  },
  remove: {
    ...of('files'),
    method: 'DELETE',
    path: '/vfs/files/:mount/*',
    summary: 'Delete a file, or all below a folder',
    description: `A path that ends with \`/\` deletes the files below it, ${vfs.mostEntriesAtOnce} at most. With \`If-Match\` a file is deleted only if unchanged.`,
    params: inMount,
    headers: removing,
    reply: {
      status: 200,
      json: Type.Object({
        deleted: Type.Integer(),
        more: Type.Boolean({ description: 'True: some are left, so send the request again.' }),
      }),
    },
    errors: written,
    absent: notFound.row.code,
  },
  search: {
    ...of('files'),
    ...inGet(vfs.VfsMatches),
    path: '/vfs/search',
    summary: 'Search files by name and text',
    description: 'Bounded in files, bytes and time.',
    query: vfs.VfsSearchQuery,
    headers: view,
    errors: [invalidRequest, ...seen],
  },
  sessions: {
    ...of('sessions'),
    ...inGet(Type.Object({ sessions: Type.Array(vfs.VfsSession), cursor: Type.Optional(Type.String()) })),
    path: '/vfs/sessions',
    summary: 'List open sessions',
    description: 'By id.',
    query: Type.Object({
      cursor: Type.Optional(Type.String({ pattern: clientIdPattern })),
      limit: Type.Optional(Type.Integer({ default: 100, minimum: 1, maximum: 200 })),
    }),
    headers: view,
  },
  openSession: {
    ...of('sessions'),
    method: 'PUT',
    path: '/vfs/sessions/:id',
    summary: 'Open a session, or renew its lease',
    description: 'The files of an open session stay.',
    params: oneSession,
    headers: view,
    body: vfs.OpenVfsSession,
    reply: { status: 200, json: vfs.VfsSession },
    errors: [invalidRequest, limitErrors.limitExceeded],
  },
  session: {
    ...of('sessions'),
    ...inGet(vfs.VfsSession),
    path: '/vfs/sessions/:id',
    summary: 'Show an open session',
    params: oneSession,
    headers: view,
    errors: [vfsErrors.noVfsSession],
    absent: true,
  },
  closeSession: {
    ...of('sessions'),
    method: 'DELETE',
    path: '/vfs/sessions/:id',
    summary: 'Close a session',
    description: 'Deletes its scratch space and its layers. A session that is not open is no error.',
    params: oneSession,
    headers: view,
    reply: { status: 204 },
  },
  audit: {
    ...of('sessions'),
    ...inGet(vfs.VfsAudit),
    path: '/vfs/sessions/:id/audit',
    summary: 'List what a session read and wrote',
    description: 'Newest first; also for a closed session, as long as the server keeps it.',
    params: oneSession,
    query: Type.Object({
      cursor: Type.Optional(Type.String({ maxLength: 64 })),
      limit: Type.Optional(Type.Integer({ default: 100, minimum: 1, maximum: 1_000 })),
    }),
    headers: view,
    errors: [vfsErrors.noVfsSession],
    absent: true,
  },
  usage: {
    ...of('tenant'),
    ...inGet(vfs.VfsUsage),
    path: '/vfs/usage',
    summary: 'Show the use of the tenant',
    headers: view,
  },
  hold: {
    ...of('tenant'),
    method: 'PUT',
    path: '/vfs/tenant/hold',
    summary: 'Set or lift the legal hold of the tenant',
    description:
      'Under a hold no session is closed because nobody uses it, and no audit is deleted for its age. When it is answered, nothing is being deleted any more. The server keeps it over restarts.',
    headers: view,
    body: vfs.VfsHold,
    reply: { status: 204 },
    errors: [invalidRequest],
  },
  erase: {
    ...of('tenant'),
    method: 'DELETE',
    path: '/vfs/tenant',
    summary: 'Erase the tenant',
    description: 'Its sessions, its own mounts and the audit, a part at a time. The storage of mounts is not deleted.',
    headers: view,
    errors: [retentionErrors.legalHold],
    reply: { status: 200, json: Type.Object({ deleted: Type.Integer(), more: Type.Boolean() }) },
  },
} as const satisfies Wire
