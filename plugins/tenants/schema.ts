import { type Static, Type } from '@sinclair/typebox'
import { largestOf, limitKinds, limitNames } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { mostDays, retentionKinds, retentionNames } from '#contracts/retention'

/** It stands in the URL of every published agent of the tenant. */
const idPattern = '^[a-z0-9][a-z0-9_-]{0,62}$'
/** False for text that cannot be a tenant's id, so that it needs no look-up. Wider than `idPattern`: some tenants were inserted by SQL before there was an API. */
export const isTenantId = (text: string): boolean => /^[A-Za-z0-9_.-]{1,128}$/.test(text)

const Name = Type.String({ minLength: 1, maxLength: 200, pattern: '^[^\\u0000]*$', description: 'For people.' })

const about = 'Limits of this tenant that are not those of the role file; see GET /api/limits for all of them.'
const limit = (maximum: number) => Type.Integer({ minimum: 0, maximum })

const MaybeTime = (description: string) =>
  Type.Union([Type.String({ format: 'date-time' }), Type.Null()], { description })

export const Tenant = Type.Object({
  id: Type.String(),
  name: Type.String(),
  limits: Type.Record(Type.String(), limit(Number.MAX_SAFE_INTEGER), { description: about }),
  retention: Type.Record(Type.String(), Type.Integer(), {
    description: 'Days that things of this tenant are kept, where they are not those of the role file.',
  }),
  legalHold: Type.Boolean({ description: 'Nothing of it is deleted, by age or by an erasure.' }),
  createdAt: Type.String({ format: 'date-time' }),
  deletedAt: Type.Union([Type.String({ format: 'date-time' }), Type.Null()]),
  erasure: Type.Optional(
    Type.Object(
      {
        dueAt: Type.String({ format: 'date-time', description: 'From then on the tenant cannot be brought back.' }),
        erasedAt: MaybeTime('When nothing of it was left; null while it is not over.'),
        rows: Type.Record(Type.String(), Type.Integer(), { description: 'How many rows went so far, by table.' }),
      },
      { description: 'Only of a deleted tenant that is to be erased.' },
    ),
  ),
})
export type Tenant = Static<typeof Tenant>

export const CreatedTenant = Type.Composite([
  Tenant,
  Type.Object({
    ownerKey: Type.Optional(
      Type.Object(
        { id: Type.String(), token: Type.String({ description: 'Shown once, here.' }) },
        { description: 'Where it was asked for: a key of role owner.' },
      ),
    ),
  }),
])
export type CreatedTenant = Static<typeof CreatedTenant>

export const CreateTenant = Type.Object(
  {
    id: Type.String({
      pattern: idPattern,
      description:
        'Lower-case letters, digits, underscore, hyphen; part of the URLs of its published agents. Never changes.',
    }),
    name: Type.Optional({ ...Name, description: 'For people; the id when absent.' }),
    ownerKey: Type.Optional(
      Type.Boolean({
        description: 'True: also issue its first key, of role owner. The token is in this answer and never again.',
      }),
    ),
  },
  { additionalProperties: false },
)
export type CreateTenant = Static<typeof CreateTenant>

export const ChangeTenant = Type.Object(
  {
    name: Type.Optional(Name),
    limits: Type.Optional(
      Type.Object(
        Object.fromEntries(
          limitNames.map((name) => [
            name,
            Type.Optional(Type.Union([limit(largestOf(name)), Type.Null()], { description: limitKinds[name].about })),
          ]),
        ),
        {
          additionalProperties: false,
          description: 'What this tenant may have, instead of the limits of the role file; null gives those back.',
        },
      ),
    ),
    retention: Type.Optional(
      Type.Object(
        Object.fromEntries(
          retentionNames.map((name) => {
            const { least: minimum, about: description } = retentionKinds[name]
            return [
              name,
              Type.Optional(Type.Union([Type.Integer({ minimum, maximum: mostDays }), Type.Null()], { description })),
            ]
          }),
        ),
        {
          additionalProperties: false,
          description: 'How many days things of this tenant are kept; null gives the time of the role file back.',
        },
      ),
    ),
    legalHold: Type.Optional(
      Type.Boolean({
        description: 'True: nothing of the tenant is deleted, by age or by an erasure, until it is lifted.',
      }),
    ),
    deleted: Type.Optional(Type.Literal(false, { description: 'Brings a deleted tenant back, its keys included.' })),
  },
  { additionalProperties: false, minProperties: 1 },
)
export type ChangeTenant = Static<typeof ChangeTenant>

const includeDeleted = Type.Optional(Type.Boolean({ default: false, description: 'Show deleted tenants, too.' }))
export const DeleteQuery = Type.Object({
  erase: Type.Optional(
    Type.Boolean({
      default: false,
      description: 'Erase it, too: soon, all of it, and for good. Also of a tenant that was deleted before.',
    }),
  ),
})
export const FindQuery = Type.Object({ includeDeleted })
export const ListQuery = Type.Object({
  q: Type.Optional(
    Type.String({ maxLength: 200, pattern: '^[^\\u0000]*$', description: 'Part of the id or the name, in any case.' }),
  ),
  includeDeleted,
  ...PageQuery.properties,
})
export type ListQuery = Static<typeof ListQuery>

export const TenantList = Type.Object({
  total: Type.Integer({ description: 'How many match, on all pages.' }),
  tenants: Type.Array(Tenant),
})

export const TenantLimit = Type.Object({
  name: Type.String(),
  max: Type.Integer({ description: 'How much the tenant may have.' }),
  used: Type.Optional(
    Type.Number({ description: 'How much it has now, where a number is kept; of streams those of this process.' }),
  ),
  unit: Type.String(),
  own: Type.Boolean({
    description: 'An operator has given the tenant this limit; false: it is that of the role file.',
  }),
  about: Type.String(),
})
export type TenantLimit = Static<typeof TenantLimit>

/** Any text: an id that no tenant can have is simply unknown. */
export const IdParams = Type.Object({ id: Type.String() })
