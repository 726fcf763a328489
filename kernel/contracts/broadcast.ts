import { type Static, Type } from '@sinclair/typebox'
import { Profile } from './profiles.ts'

const revision = Type.Integer({ minimum: 0 })

/** The current state of a profile or pool, or the fact that it was deleted. */
export const BroadcastChange = Type.Object({
  /** The number of this change. A tenant's changes are numbered in the order of their commits. */
  revision,
  kind: Type.Union([Type.Literal('profile'), Type.Literal('pool')]),
  key: Type.String({ description: 'Name of the profile, id of the pool.' }),
  profile: Type.Optional(Profile),
  pool: Type.Optional(Type.Object({ id: Type.String() }, { additionalProperties: true })),
})
export type BroadcastChange = Static<typeof BroadcastChange>

/**
 * Every change of one tenant after revision `after`, up to and including `revision`. Only a runner that has everything up to `after` may apply it;
 * the runner then has everything up to `revision`, even when several conductors send it pages.
 */
export const BroadcastPage = Type.Object({ after: revision, revision, changes: Type.Array(BroadcastChange) })
export type BroadcastPage = Static<typeof BroadcastPage>

/** The revision of each tenant, by its id. */
export const BroadcastRevisions = Type.Record(Type.String(), revision)
export type BroadcastRevisions = Static<typeof BroadcastRevisions>
