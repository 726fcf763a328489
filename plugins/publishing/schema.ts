import { type Static, Type } from '@sinclair/typebox'
import { keyExpiry } from '#contracts/auth'
import { profileName } from '#contracts/profiles'
import { webhookUrl } from '#contracts/runs'

const slugPattern = '^[a-z0-9][a-z0-9-]{0,62}$'

const knobs = {
  allowedOrigins: Type.Optional(
    Type.Array(Type.String({ maxLength: 300 }), {
      maxItems: 100,
      uniqueItems: true,
      description: 'Exact `scheme://host[:port]`. Checked only when a request carries `Origin`.',
    }),
  ),
  rateLimitRpm: Type.Optional(
    Type.Integer({ minimum: 1, maximum: 100_000, description: 'Requests a minute per key.' }),
  ),
  syncMaxDurationSeconds: Type.Optional(Type.Integer({ minimum: 1, maximum: 600 })),
  exposeToolEvents: Type.Optional(Type.Boolean({ description: 'Whether streams show `tool` events.' })),
}

export const PublishBody = Type.Object(
  {
    slug: Type.Optional(Type.String({ pattern: slugPattern, description: "By default made from the profile's name." })),
    ...knobs,
    webhookUrl: Type.Optional(webhookUrl),
  },
  { additionalProperties: false },
)
export type PublishBody = Static<typeof PublishBody>

export const PatchBody = Type.Object(
  {
    ...knobs,
    webhookUrl: Type.Optional(
      Type.Union([webhookUrl, Type.Null()], {
        description: 'URL that receives the ends of its runs; `null` removes it.',
      }),
    ),
    enabled: Type.Optional(Type.Boolean({ description: '`false` is a kill switch that keeps the history.' })),
    slug: Type.Optional(Type.Unknown({ description: 'Refused: a slug never changes. Unpublish and publish again.' })),
  },
  { additionalProperties: false },
)
export type PatchBody = Static<typeof PatchBody>

export const PublishedAgent = Type.Object({
  id: Type.String(),
  tenantId: Type.String(),
  profileName,
  slug: Type.String(),
  visibility: Type.String(),
  authMode: Type.String(),
  allowedOrigins: Type.Array(Type.String()),
  rateLimitRpm: Type.Integer(),
  syncMaxDurationSeconds: Type.Integer(),
  exposeToolEvents: Type.Boolean(),
  enabled: Type.Boolean(),
  webhookUrl: Type.Optional(Type.String()),
  publicUrl: Type.Optional(Type.String()),
})
export type PublishedAgent = Static<typeof PublishedAgent>

export const KeyBody = Type.Object(
  {
    label: Type.String({ minLength: 1, maxLength: 200, pattern: '^[^\\u0000]*$', description: 'Free text.' }),
    expiresAt: Type.Optional(keyExpiry),
    allowedAddresses: Type.Optional(
      Type.Array(Type.String({ minLength: 2, maxLength: 50 }), {
        minItems: 1,
        maxItems: 50,
        uniqueItems: true,
        description: 'Addresses and networks (`10.0.0.0/8`) from which the key may be used; by default from anywhere.',
      }),
    ),
  },
  { additionalProperties: false },
)
export type KeyBody = Static<typeof KeyBody>

const Time = Type.String({ format: 'date-time' })
const MaybeTime = Type.Union([Time, Type.Null()])

export const KeyMetadata = Type.Object({
  id: Type.String(),
  publishedId: Type.String(),
  label: Type.String(),
  createdAt: Time,
  createdBy: Type.Union([Type.String(), Type.Null()], {
    description:
      'The API key that issued it, or `bootstrap`. Null: not known, because an earlier release of the server issued it.',
  }),
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

export const NameParams = Type.Object({ name: Type.String() })
export const KeyParams = Type.Object({ name: Type.String(), keyId: Type.String() })
