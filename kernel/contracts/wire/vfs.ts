import { type TSchema, Type } from '@sinclair/typebox'
import { vfsService } from '../auth.ts'
import { httpErrors, invalidRequest, notFound } from '../http-errors.ts'
import { clientIdPattern } from '../ids.ts'
import { limitErrors } from '../limits.ts'
import { objectErrors } from '../object-store.ts'
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
      description: 'The session whose view it is; the bare mounts unless given.',
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
const known = { 'if-match': text('Only as it is known: its `ETag`, or `*` for any.') }
const reading = Type.Object({
  ...view.properties,
  range: text('Bytes from and to, both included: `bytes=0-99`, `bytes=100-`, `bytes=-100`.'),
  'if-none-match': text('304 when it is still this `ETag`.'),
  'if-range': text('The range only of this `ETag`, else all of it.'),
})
const writing = Type.Object({
  ...view.properties,
  ...known,
  'if-none-match': text('`*`: only where there is nothing yet.'),
  'content-type': text('What it is read as again, where the mount keeps it.'),
})
const removing = Type.Object({ ...view.properties, ...known })
const inMount = Type.Object({
  mount: vfs.mountName,
  '*': Type.String({ maxLength: vfs.maxPathBytes + 1, description: 'The path below the mount.' }),
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
    description: 'Of the tenant; of a session those that its lease allows, and its scratch space.',
    headers: view,
    errors: [vfsErrors.noVfsSession],
  },
  putMount: {
    ...of('mounts'),
    method: 'PUT',
    path: '/vfs/mounts/:mount',
    summary: 'Create or replace a mount of the tenant',
    description: 'Over its objects, or over a bucket of its own. A mount of the installation cannot be replaced.',
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
    description: 'What is behind it stays.',
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
    description: 'An empty path is the mount itself. A folder without files is none: its list is empty.',
    params: inMount,
    query: vfs.VfsListQuery,
    headers: view,
    errors: [invalidRequest, ...seen],
  },
  /** As `list` without a path, for whoever leaves the last slash out. */
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
      'The body as it is, of any length that the server allows; it replaces what is there unless `If-Match` or `If-None-Match: *` says otherwise. Nothing of a body that breaks off is seen. 201 when it is new.',
    params: inMount,
    headers: writing,
    streams: true,
    reply: { status: 200, json: vfs.VfsEntry },
    errors: [...written, objectErrors.uploadBroken, objectErrors.checksumMismatch, httpErrors.bodyTooLarge],
  },
  remove: {
    ...of('files'),
    method: 'DELETE',
    path: '/vfs/files/:mount/*',
    summary: 'Delete a file, or all below a folder',
    description: `A path that ends with \`/\` deletes the files below it, ${vfs.mostEntriesAtOnce} at most. \`If-Match\` deletes a file only as it is known.`,
    params: inMount,
    headers: removing,
    reply: {
      status: 200,
      json: Type.Object({
        deleted: Type.Integer(),
        more: Type.Boolean({ description: 'Others are left: send the request again.' }),
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
    description: 'The files of one that is open stay.',
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
    description: 'Its scratch space and its layers are dropped. One that is not open is no error.',
    params: oneSession,
    headers: view,
    reply: { status: 204 },
  },
  audit: {
    ...of('sessions'),
    ...inGet(vfs.VfsAudit),
    path: '/vfs/sessions/:id/audit',
    summary: 'List what a session read and wrote',
    description: 'The newest first; also of a session that is closed, for as long as the server keeps it.',
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
    summary: 'Show what the tenant has here',
    headers: view,
  },
  erase: {
    ...of('tenant'),
    method: 'DELETE',
    path: '/vfs/tenant',
    summary: 'Erase the tenant',
    description: 'Its sessions, its own mounts and the audit, a part at a time. What is behind mounts stays there.',
    headers: view,
    reply: { status: 200, json: Type.Object({ deleted: Type.Integer(), more: Type.Boolean() }) },
  },
} as const satisfies Wire
