import { type Static, Type } from '@sinclair/typebox'
import { largestOf, limitKinds, limitNames } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { mostDays, retentionKinds, retentionNames } from '#contracts/retention'

/** The form of a new tenant's id. It is restricted because the id is part of the URL of every published agent of the tenant. */
const idPattern = '^[a-z0-9][a-z0-9_-]{0,62}$'
/** False for text that cannot be a tenant's id, so that it needs no look-up. Wider than `idPattern`: some tenants were inserted by SQL before there was an API. */
export const isTenantId = (text: string): boolean => /^[A-Za-z0-9_.-]{1,128}$/.test(text)

const Name = Type.String({ minLength: 1, maxLength: 200, pattern: '^[^\\u0000]*$', description: 'For people.' })

const about = 'Limits of this tenant that differ from the role file; GET /api/limits shows all.'
const limit = (maximum: number) => Type.Integer({ minimum: 0, maximum })

const MaybeTime = (description: string) =>
  Type.Union([Type.String({ format: 'date-time' }), Type.Null()], { description })

export const Tenant = Type.Object({
  id: Type.String(),
  name: Type.String(),
  limits: Type.Record(Type.String(), limit(Number.MAX_SAFE_INTEGER), { description: about }),
  retention: Type.Record(Type.String(), Type.Integer(), {
    description: 'Retention of this tenant in days, where it differs from the role file.',
  }),
  legalHold: Type.Boolean({ description: 'True: its data is not deleted, by age or by an erasure.' }),
  createdAt: Type.String({ format: 'date-time' }),
  deletedAt: Type.Union([Type.String({ format: 'date-time' }), Type.Null()]),
  erasure: Type.Optional(
    Type.Object(
      {
        dueAt: Type.String({ format: 'date-time', description: 'From then on the tenant cannot be brought back.' }),
        erasedAt: MaybeTime('When the erasure was complete; null before that.'),
        rows: Type.Record(Type.String(), Type.Integer(), { description: 'Deleted rows so far, by table.' }),
      },
      { description: 'Only for a deleted tenant that is to be erased.' },
    ),
  ),
})
export type Tenant = Static<typeof Tenant>

export const CreatedTenant = Type.Composite([
  Tenant,
  Type.Object({
    ownerKey: Type.Optional(
      Type.Object(
        {
          id: Type.String(),
          token: Type.String({ description: 'Shown once, here.' }),
          expiresAt: MaybeTime('The longest lifetime that this server allows; null: never.'),
        },
        { description: 'If requested: a key of role owner.' },
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
          description: 'Limits of this tenant, instead of those of the role file; null restores those.',
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
          description: "How many days data of this tenant is kept; null restores the role file's time.",
        },
      ),
    ),
    legalHold: Type.Optional(
      Type.Boolean({
        description: 'True: nothing of the tenant is deleted, by age or by an erasure, until it is lifted.',
      }),
    ),
    deleted: Type.Optional(Type.Literal(false, { description: 'False restores a deleted tenant with its keys.' })),
  },
  { additionalProperties: false, minProperties: 1 },
)
export type ChangeTenant = Static<typeof ChangeTenant>

const includeDeleted = Type.Optional(Type.Boolean({ default: false, description: 'Show deleted tenants, too.' }))
export const DeleteQuery = Type.Object({
  erase: Type.Optional(
    Type.Boolean({
      default: false,
      description: 'Also erase all its data, soon and permanently; works for an already deleted tenant, too.',
    }),
  ),
})
export const FindQuery = Type.Object({ includeDeleted })
export const ListQuery = Type.Object({
  q: Type.Optional(
    Type.String({
      maxLength: 200,
      pattern: '^[^\\u0000]*$',
      description: 'Part of the id or the name; case does not matter.',
    }),
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
    Type.Number({ description: 'Its current use, if it is counted; streams are those of this process.' }),
  ),
  unit: Type.String(),
  own: Type.Boolean({
    description: 'True: an operator has set this limit for the tenant; false: it is that of the role file.',
  }),
  about: Type.String(),
})
export type TenantLimit = Static<typeof TenantLimit>

/** Accepts any text. An id that no tenant can have is answered like an unknown id. */
export const IdParams = Type.Object({ id: Type.String() })
