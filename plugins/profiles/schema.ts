import { type Static, Type } from '@sinclair/typebox'
import { ProfileInput } from '#contracts/profiles'

// A profile that was read may be sent back as it is: what the server computes is accepted and ignored.
const computed = {
  createdAt: Type.Optional(Type.Unknown({ description: 'Set by the server; ignored on write.' })),
  updatedAt: Type.Optional(Type.Unknown({ description: 'Set by the server; ignored on write.' })),
}

export const CreateProfile = Type.Object({ ...ProfileInput.properties, ...computed }, { additionalProperties: false })

/** The path says which profile; a name in the body must agree. */
export const ReplaceProfile = Type.Object(
  { ...CreateProfile.properties, name: Type.Optional(ProfileInput.properties.name) },
  { additionalProperties: false },
)
export type ReplaceProfile = Static<typeof ReplaceProfile>

/** Any text: a name that no profile can have is simply unknown. */
export const NameParams = Type.Object({ name: Type.String() })

export const NoContent = Type.Unsafe<undefined>({ type: 'null', description: 'No content.' })
