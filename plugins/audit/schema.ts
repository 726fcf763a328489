import { type Static, Type } from '@sinclair/typebox'
import { PageQuery } from '#contracts/paging'

// PostgreSQL stores no NUL in a text, so no entry can contain one.
const text = (description: string) =>
  Type.Optional(Type.String({ maxLength: 1_024, pattern: '^[^\\u0000]*$', description }))
const time = (description: string) =>
  Type.Optional(
    Type.String({
      pattern: '^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}(:\\d{2}(\\.\\d{1,9})?)?(Z|[+-]\\d{2}:\\d{2})$',
      description,
    }),
  )

export const AuditQuery = Type.Object({
  actor: text('Id of the calling key, `bootstrap`, or the name of a command.'),
  action: text('Exactly this action, e.g. `profiles.create`.'),
  target: text('Exactly this target, e.g. the name of a profile.'),
  q: text('Part of the action, the target or the path.'),
  from: time('ISO 8601 with a zone: not before this time.'),
  to: time('ISO 8601 with a zone: before this time.'),
  // The log only grows: without a default, a client that leaves the limit out would read all of it.
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 200, default: 100 })),
  offset: PageQuery.properties.offset,
  cursor: PageQuery.properties.cursor,
})
export type AuditQuery = Static<typeof AuditQuery>

const maybe = (description: string) => Type.Union([Type.String(), Type.Null()], { description })

export const ListedEntry = Type.Object({
  id: Type.String({ description: '`aud_…`' }),
  at: Type.String({ format: 'date-time' }),
  actor: Type.Object({
    keyId: Type.String({ description: 'The calling key, `bootstrap`, or the name of a command.' }),
    role: Type.String({ description: 'The role of the key at that time; `operator` for a command.' }),
  }),
  action: Type.String(),
  target: maybe('The target, as the path names it, or the created thing.'),
  method: maybe('Null for a command.'),
  path: maybe('Without the query. Null for a command.'),
  requestId: maybe('The `request_id` of the answer. Null for a command.'),
  remoteAddress: maybe('Null for a command.'),
  status: Type.Union([Type.Integer(), Type.Null()], {
    description: 'Status of the answer. Null: not known (yet); the write may have been done.',
  }),
  detail: Type.Optional(
    Type.Record(Type.String(), Type.Unknown(), {
      description:
        'What the write did: the proof of an erasure (what it deleted, by table, or by kind of an end user), or the number of keys of agents (`agentKeys`) that were revoked with an API key.',
    }),
  ),
})
export type ListedEntry = Static<typeof ListedEntry>
