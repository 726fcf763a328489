import { type Static, Type } from '@sinclair/typebox'
import { secretNamePattern } from '#contracts/secrets'

const Time = Type.String({ format: 'date-time' })
const name = Type.String({
  pattern: secretNamePattern,
  description: 'Unique in its tenant; `secret://<name>` refers to it.',
})
/** Longer than any useful limit. A request may have one mebibyte. */
const mostCharacters = 1024 * 1024

export const CreateSecret = Type.Object(
  {
    name,
    key: Type.Optional(
      Type.String({
        pattern: '^[A-Za-z_][A-Za-z0-9_.:/-]{0,127}$',
        description: 'The environment variable or credential slot that the value is for, e.g. `GITHUB_TOKEN`.',
      }),
    ),
    value: Type.String({
      minLength: 1,
      maxLength: mostCharacters,
      description: 'The plain text. It is encrypted before it is stored, and no answer of this API ever has it.',
    }),
    expiresAt: Type.Optional(
      Type.String({
        pattern: '^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}(:\\d{2}(\\.\\d{1,9})?)?(Z|[+-]\\d{2}:\\d{2})$',
        description:
          'ISO 8601 with a zone, in the future. After that the value is no longer used; `warning` and metrics announce it.',
      }),
    ),
  },
  { additionalProperties: false },
)
export type CreateSecret = Static<typeof CreateSecret>

/** The path says which secret; a name in the body must agree. */
export const UpdateSecret = Type.Object(
  { ...CreateSecret.properties, name: Type.Optional(name) },
  { additionalProperties: false },
)
export type UpdateSecret = Static<typeof UpdateSecret>

export const NameParams = Type.Object({ name: Type.String({ description: 'Name of the secret.' }) })
export const VersionParams = Type.Object({
  ...NameParams.properties,
  version: Type.Integer({ minimum: 1, maximum: 2_147_483_647 }),
})

const warnings = ['expires_soon', 'expired'] as const
const warning = Type.Optional(
  Type.Union(
    warnings.map((one) => Type.Literal(one)),
    { description: '`expired`: the value is no longer used. `expires_soon`: within two weeks.' },
  ),
)
export type Warning = (typeof warnings)[number]

export const SecretMetadata = Type.Object({
  name: Type.String(),
  key: Type.Optional(Type.String()),
  version: Type.Integer({ description: 'The number of its values so far; this is the current one.' }),
  createdAt: Time,
  updatedAt: Time,
  expiresAt: Type.Optional(Time),
  warning,
  lastReadAt: Type.Optional(Type.String({ format: 'date-time', description: 'Up to some seconds late.' })),
})
export type SecretMetadata = Static<typeof SecretMetadata>

export const SecretVersion = Type.Object({
  version: Type.Integer(),
  createdAt: Time,
  createdBy: Type.String({ description: 'Id of the key that wrote it.' }),
  expiresAt: Type.Optional(Time),
  restoredFrom: Type.Optional(Type.Integer()),
  masterKey: Type.String({ description: 'Id of the master key that encrypts it.' }),
})
export type SecretVersion = Static<typeof SecretVersion>

export const SecretRead = Type.Object({
  reader: Type.String({ description: 'What the value was for, e.g. `webhooks` or `mcp-servers/github`.' }),
  version: Type.Integer({ description: 'The version that was read last.' }),
  reads: Type.Integer(),
  firstReadAt: Time,
  lastReadAt: Time,
})
export type SecretRead = Static<typeof SecretRead>

export const ResolveBody = Type.Object(
  { ref: Type.String({ maxLength: 2_048, description: '`secret://<name>`.' }) },
  { additionalProperties: false },
)
export const Resolved = Type.Object({ value: Type.String() })
