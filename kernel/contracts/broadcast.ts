import { type Static, Type } from '@sinclair/typebox'
import { Profile } from './profiles.ts'

const revision = Type.Integer({ minimum: 0 })

/** One profile or pool as it is now, or that it is gone. */
export const BroadcastChange = Type.Object({
  /** Counts the changes of one tenant in the order of their commits. */
  revision,
  kind: Type.Union([Type.Literal('profile'), Type.Literal('pool')]),
  key: Type.String({ description: 'Name of the profile, id of the pool.' }),
  profile: Type.Optional(Profile),
  pool: Type.Optional(Type.Object({ id: Type.String() }, { additionalProperties: true })),
})
export type BroadcastChange = Static<typeof BroadcastChange>

/**
 * Everything of one tenant that changed after `after`, up to and with `revision`. Only who has all up to `after` may take it:
 * then it has all up to `revision`, whoever else sends it pages too.
 */
export const BroadcastPage = Type.Object({ after: revision, revision, changes: Type.Array(BroadcastChange) })
export type BroadcastPage = Static<typeof BroadcastPage>

/** Revision of each tenant. */
export const BroadcastRevisions = Type.Record(Type.String(), revision)
export type BroadcastRevisions = Static<typeof BroadcastRevisions>
