import { type Static, Type } from '@sinclair/typebox'
import { keyExpiry, roles } from '#contracts/auth'

const Role = Type.Union(
  roles.map((role) => Type.Literal(role)),
  { description: 'At most the role of the key that asks; its role when absent.' },
)
const Time = Type.String({ format: 'date-time' })
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
          'Addresses and networks (`10.0.0.0/8`) from which the key may be used; within those of the key that asks, which it has when absent.',
      }),
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
    description: 'The key that minted this one, or has replaced that one since; `bootstrap`, or a command.',
  }),
  replaces: Type.Union([Type.String(), Type.Null()], { description: 'The key whose place it took.' }),
  lastUsedAt: MaybeTime,
  expiresAt: MaybeTime,
  allowedAddresses: Type.Union([Type.Array(Type.String()), Type.Null()], {
    description: 'The networks from which it may be used; null: from anywhere.',
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
