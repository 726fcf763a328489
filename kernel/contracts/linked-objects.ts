import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'
import { errorTable } from './errors.ts'
import type { TenantTx } from './database.ts'
import type { ObjectStore, OpenObject } from './object-store.ts'

/** What stands for content that is in the object store instead of a run, its log or its conversation. Its content never changes. */
export const ObjectLink = Type.Object(
  {
    key: Type.String({ pattern: '^[a-z0-9_]{1,100}$' }),
    sha256: Type.String({ pattern: '^[0-9a-f]{64}$' }),
    bytes: Type.Integer({ minimum: 0 }),
    contentType: Type.String({ maxLength: 255 }),
  },
  { additionalProperties: false },
)
export type ObjectLink = Static<typeof ObjectLink>

export const linkErrors = errorTable('linked-objects', {
  unknownUpload: {
    status: 400,
    about: 'This tenant has no such upload, or it has expired: upload the file again.',
  },
  uploadTooLarge: { status: 413, message: 'An upload may have at most 4 MiB.' },
  emptyUpload: { status: 400, message: 'The upload has no bytes.' },
  tooManyUploads: {
    status: 429,
    retry: 'later',
    message: 'Too many uploads of this tenant wait for a run; they expire by themselves.',
  },
  uploadsUnavailable: {
    status: 503,
    message:
      'This server stores no uploads: it has no object store, or no database. Send the file as base64 in `data`.',
  },
  attachmentGone: { status: 410, message: 'An attachment is no longer in the object store.' },
})

/** Objects of each tenant outside its own keys: nobody lists, reads, replaces or deletes them through its `ObjectStore`. */
export const ReservedObjects = capability<ObjectStore>('core.reserved-objects')

/** Large contents of runs and workflow runs, in the object store of their tenant for as long as one of the runs is kept that have them. */
export interface LinkedObjects {
  /** What has more bytes is linked; Infinity where there is nowhere to keep it. */
  readonly above: number
  /**
   * Keeps contents for a run, which may be about to begin. Equal ones are kept once. Rejects with what the store rejects with,
   * such as 409 `limit_exceeded`; then none is linked that was not before.
   */
  keep(tenantId: string, runId: string, contents: readonly Content[]): Promise<ObjectLink[]>
  /** What a run has of this digest, as it is read; undefined as with `read`. */
  open(tenantId: string, runId: string, sha256: string): Promise<OpenObject | undefined>
  /** Lets another run of the tenant have what one has: those of `keys`, or all; with the transaction, if any. Resolves to how many. */
  lend(
    tenantId: string,
    runs: { readonly from: string; readonly to: string; readonly keys?: readonly string[] },
    tx?: TenantTx,
  ): Promise<number>
  /** Lets a run have an upload of its tenant. Rejects with `unknown_upload`, also for another tenant's. */
  use(tenantId: string, runId: string, uploadId: string): Promise<ObjectLink>
  /** Undefined: the run has no such content, or it is not what the link says. Rejects when the store cannot be reached. */
  read(tenantId: string, runId: string, link: ObjectLink): Promise<Buffer | undefined>
  /**
   * Takes a file in for a run that will `use` it, while its bytes arrive; without a run it goes after a while. Rejects with what
   * the store rejects with, and with `upload_too_large`, `empty_upload`, `too_many_uploads`, `uploads_unavailable`.
   */
  upload(tenantId: string, body: AsyncIterable<Uint8Array>, mediaType: string): Promise<Upload>
  /** A run of this id was not begun: what was kept for it goes, unless there is such a run. */
  release(tenantId: string, runId: string): Promise<void>
}
export const LinkedObjects = capability<LinkedObjects>('conductor.linked-objects')

export const Upload = Type.Object({
  id: Type.String({ description: 'Use it as `upload` of an attachment.' }),
  sha256: Type.String(),
  bytes: Type.Integer(),
  mediaType: Type.String(),
  expiresAt: Type.String({
    format: 'date-time',
    description: 'Until then a run may name it; then it is kept as long as the run.',
  }),
})
export type Upload = Static<typeof Upload>

export interface Content {
  readonly bytes: Buffer
  readonly contentType: string
}
