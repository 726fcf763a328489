import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'
import { errorTable } from './errors.ts'
import type { TenantTx } from './database.ts'
import type { ObjectStore, OpenObject } from './object-store.ts'

/** A reference to content that is stored in the object store instead of in a run, its log or its conversation. The content never changes. */
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

/** Objects of each tenant outside the tenant's own keys. Nobody can list, read, replace or delete them through its `ObjectStore`. */
export const ReservedObjects = capability<ObjectStore>('core.reserved-objects')

/** Large contents of runs and workflow runs. They are in the object store of their tenant for as long as one of those runs is kept. */
export interface LinkedObjects {
  /** Contents with more bytes than this are linked. Infinity: there is no store to link to. */
  readonly above: number
  /**
   * Stores contents for a run, which may not have begun yet. Equal contents are stored once. Rejects with the store's errors, such as 409
   * `limit_exceeded`; in that case no content is newly linked.
   */
  keep(tenantId: string, runId: string, contents: readonly Content[]): Promise<ObjectLink[]>
  /** Opens the run's content with this digest. Undefined as with `read`. */
  open(tenantId: string, runId: string, sha256: string): Promise<OpenObject | undefined>
  /**
   * Gives another run of the tenant access to the contents of one run: those of `keys`, or all; within the transaction, if given. Resolves to their
   * number.
   */
  lend(
    tenantId: string,
    runs: { readonly from: string; readonly to: string; readonly keys?: readonly string[] },
    tx?: TenantTx,
  ): Promise<number>
  /** Gives a run access to an upload of its tenant. Rejects with `unknown_upload`, also for another tenant's upload. */
  use(tenantId: string, runId: string, uploadId: string): Promise<ObjectLink>
  /** Undefined: the run has no such content, or the content does not match the link. Rejects when the store cannot be reached. */
  read(tenantId: string, runId: string, link: ObjectLink): Promise<Buffer | undefined>
  /**
   * Stores a file for a run that will `use` it, while its bytes arrive. A file that no run uses is deleted after a while. Rejects with the store's
   * errors, and with `upload_too_large`, `empty_upload`, `too_many_uploads`, `uploads_unavailable`.
   */
  upload(tenantId: string, body: AsyncIterable<Uint8Array>, mediaType: string): Promise<Upload>
  /** Called when a run with this id was not begun. Deletes the contents stored for it, unless such a run exists after all. */
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
