import { type Static, Type } from '@sinclair/typebox'
import { largestOf, limitKinds, limitNames } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'

/** It stands in the URL of every published agent of the tenant. */
const idPattern = '^[a-z0-9][a-z0-9_-]{0,62}$'
/** False for text that cannot be a tenant's id, so that it needs no look-up. Wider than `idPattern`: some tenants were inserted by SQL before there was an API. */
export const isTenantId = (text: string): boolean => /^[A-Za-z0-9_.-]{1,128}$/.test(text)

const Name = Type.String({ minLength: 1, maxLength: 200, pattern: '^[^\\u0000]*$', description: 'For people.' })

const about = 'Limits of this tenant that are not those of the role file; see GET /api/limits for all of them.'
const limit = (maximum: number) => Type.Integer({ minimum: 0, maximum })

export const Tenant = Type.Object({
  id: Type.String(),
  name: Type.String(),
  limits: Type.Record(Type.String(), limit(Number.MAX_SAFE_INTEGER), { description: about }),
  createdAt: Type.String({ format: 'date-time' }),
  deletedAt: Type.Union([Type.String({ format: 'date-time' }), Type.Null()]),
})
export type Tenant = Static<typeof Tenant>

export const CreateTenant = Type.Object(
  {
    id: Type.String({
      pattern: idPattern,
      description:
        'Lower-case letters, digits, underscore, hyphen; part of the URLs of its published agents. Never changes.',
    }),
    name: Type.Optional({ ...Name, description: 'For people; the id when absent.' }),
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
    deleted: Type.Optional(Type.Literal(false, { description: 'Brings a deleted tenant back, its keys included.' })),
  },
  { additionalProperties: false, minProperties: 1 },
)
export type ChangeTenant = Static<typeof ChangeTenant>

const includeDeleted = Type.Optional(Type.Boolean({ default: false, description: 'Show deleted tenants, too.' }))
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
