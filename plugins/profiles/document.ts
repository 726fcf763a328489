import { Value } from '@sinclair/typebox/value'
import { type Profile, ProfileInput } from '#contracts/profiles'
import type { ReplaceProfile } from './schema.ts'

/** Fields of a profile that have their own columns, or are computed when the profile is read. */
const apart = ['name', 'id', 'version', 'createdAt', 'updatedAt', 'workerPlacement'] as const

/** The stored part of a profile: every other field. */
export type ProfileDocument = Omit<Profile, (typeof apart)[number]>

/** The stored part of a body, with the schema's defaults for missing fields. A new field of the schema needs no change here. */
export function documentOf(input: ReplaceProfile): ProfileDocument {
  const filled = Value.Default(ProfileInput, { ...input }) as ReplaceProfile
  const written = Object.entries(filled).filter(([field]) => !apart.some((one) => one === field))
  return { limits: {}, metadata: {}, ...Object.fromEntries(written) } as ProfileDocument
}
