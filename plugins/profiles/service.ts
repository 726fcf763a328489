import { newId } from '#contracts/ids'
import type { Database } from '#contracts/database'
import type { Profile, ProfileInput } from '#contracts/profiles'
import type { Change } from './broadcast.ts'
import { documentOf } from './document.ts'
import { nameMismatch, unknownSkill } from './errors.ts'
import type { ReplaceProfile } from './schema.ts'
import { deleteProfile, insertProfile, replaceProfile } from './store.ts'

/** Writes commit first and are broadcast afterwards: what is stored is the truth. Specification 4.3. */
export function createProfileService(database: Database, broadcast: (change: Change) => Promise<void>) {
  return {
    async create(tenantId: string, input: ProfileInput): Promise<Profile> {
      checkSkills(input)
      const profile = await insertProfile(database, tenantId, input.name, input.id ?? newId('prof'), documentOf(input))
      await broadcast({ tenantId, name: profile.name, profile })
      return profile
    },
    async replace(tenantId: string, name: string, input: ReplaceProfile): Promise<Profile> {
      if (input.name !== undefined && input.name !== name) throw nameMismatch()
      checkSkills(input)
      const profile = await replaceProfile(database, tenantId, name, input.id, documentOf(input))
      await broadcast({ tenantId, name, profile })
      return profile
    },
    async remove(tenantId: string, name: string): Promise<void> {
      await deleteProfile(database, tenantId, name)
      await broadcast({ tenantId, name, profile: undefined })
    },
  }
}
export type ProfileService = ReturnType<typeof createProfileService>

/** No catalog of skills exists here yet, so every name is unknown; saying so is better than ignoring it. */
function checkSkills({ skills = [] }: Pick<ReplaceProfile, 'skills'>): void {
  const [first] = skills
  if (first !== undefined) throw unknownSkill(first)
}
