import { type Static, Type } from '@sinclair/typebox'
import { keyExpiry, roles } from '#contracts/auth'

const Role = Type.Union(
  roles.map((role) => Type.Literal(role)),
  { description: 'At most the role of the calling key; by default the same role.' },
)
const Time = Type.String({ format: 'date-time' })
const EntryName = Type.String({ pattern: '^[A-Za-z0-9_-]{1,64}$' })
const MaybeTime = Type.Union([Time, Type.Null()])

export const IssueBody = Type.Object(
  {
    label: Type.String({ minLength: 1, maxLength: 200, pattern: '^[^\\u0000]*$', description: 'What the key is for.' }),
    role: Type.Optional(Role),
    expiresAt: Type.Optional(keyExpiry),
    allowedAddresses: Type.Optional(
      Type.Array(Type.String({ minLength: 2, maxLength: 50 }), {
        minItems: 1,
        maxItems: 50,
        uniqueItems: true,
        description:
          'Addresses and networks (`10.0.0.0/8`) from which the key may be used; within those of the calling key, which are the default.',
      }),
    ),
    mcpServers: Type.Optional(
      Type.Array(EntryName, {
        maxItems: 500,
        uniqueItems: true,
        description:
          'Entries of the MCP catalog that the key may use at `POST /mcp/catalog` and as apps; within those of the calling key, which are the default.',
      }),
    ),
    mcpToolPermissions: Type.Optional(
      Type.Record(
        EntryName,
        Type.Array(Type.String({ minLength: 1, maxLength: 200, pattern: '^[^\\u0000]*$' }), {
          minItems: 1,
          maxItems: 500,
          uniqueItems: true,
        }),
        {
          additionalProperties: false,
          maxProperties: 500,
          description:
            'By entry, the only tools that the key may use there, as the server names them; of other entries all tools.',
        },
      ),
    ),
  },
  { additionalProperties: false },
)
export type IssueBody = Static<typeof IssueBody>

export const KeyMetadata = Type.Object({
  id: Type.String(),
  label: Type.String(),
  role: Role,
  createdAt: Time,
  createdBy: Type.String({
    description:
      'The key that issued this one, or its replacement, which is also the issuer of what the replaced key issues in its grace; `bootstrap`, or a command.',
  }),
  replaces: Type.Union([Type.String(), Type.Null()], { description: 'The key that it replaced.' }),
  lastUsedAt: MaybeTime,
  expiresAt: MaybeTime,
  allowedAddresses: Type.Union([Type.Array(Type.String()), Type.Null()], {
    description: 'The networks from which it may be used; null: from anywhere.',
  }),
  mcpServers: Type.Array(Type.String(), {
    description: 'The entries of the MCP catalog that it may use at `POST /mcp/catalog` and as apps; empty means all.',
  }),
  mcpToolPermissions: Type.Record(Type.String(), Type.Array(Type.String()), {
    description: 'The only tools that it may use, by entry; of other entries all tools.',
  }),
  revokedAt: MaybeTime,
})
export type KeyMetadata = Static<typeof KeyMetadata>

export const IssuedKey = Type.Object({
  ...KeyMetadata.properties,
  token: Type.String({ description: 'Shown once, here.' }),
})
export type IssuedKey = Static<typeof IssuedKey>

export const IdParams = Type.Object({ id: Type.String() })
export const RevokeQuery = Type.Object({
  agentKeys: Type.Optional(
    Type.Boolean({
      default: false,
      description:
        'Also revoke the keys of published agents that the key or its line issued, as after a leak; works for an already revoked key, too. Keys of agents with `createdBy` null are not known to belong to it.',
    }),
  ),
})
