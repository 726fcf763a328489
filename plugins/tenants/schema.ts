import { type Static, Type } from '@sinclair/typebox'
import { PageQuery } from '#contracts/paging'

/** It stands in the URL of every published agent of the tenant. */
const idPattern = '^[a-z0-9][a-z0-9_-]{0,62}$'
/** False for text that cannot be a tenant's id, so that it needs no look-up. Wider than `idPattern`: some tenants were inserted by SQL before there was an API. */
export const isTenantId = (text: string): boolean => /^[A-Za-z0-9_.-]{1,128}$/.test(text)

const Name = Type.String({ minLength: 1, maxLength: 200, pattern: '^[^\\u0000]*$', description: 'For people.' })

export const Tenant = Type.Object({
  id: Type.String(),
  name: Type.String(),
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

/** Any text: an id that no tenant can have is simply unknown. */
export const IdParams = Type.Object({ id: Type.String() })
