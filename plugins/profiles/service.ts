import type { Broadcast } from '#contracts/broadcast'
import type { Database } from '#contracts/database'
import { newId } from '#contracts/ids'
import { isProfileName, type Profile, type ProfileInput } from '#contracts/profiles'
import { documentOf, type ProfileDocument } from './document.ts'
import { nameMismatch, poolWithoutRuntime, unknownPool } from './errors.ts'
import { checkReferences, type References } from './references.ts'
import type { ReplaceProfile } from './schema.ts'
import { deleteProfile, type Expected, findPool, insertProfile, replaceProfile, type Writer } from './store.ts'
import { findVersion } from './versions.store.ts'

/** Writes commit first and are broadcast afterwards: what is stored is the truth. Specification 4.3. */
export function createProfileService(database: Database, broadcast: Broadcast, references: References) {
  /** A pool that is deleted after this look is refused by the database. */
  const checkPool = async (tenantId: string, { pool, runtime }: ProfileDocument): Promise<void> => {
    if (pool === undefined) return
    const found = isProfileName(pool) ? await findPool(database, tenantId, pool) : undefined
    if (!found) throw unknownPool(pool)
    if (found.runtimes && !found.runtimes.includes(runtime)) throw poolWithoutRuntime(pool, runtime)
  }
  const check = async (tenantId: string, document: ProfileDocument): Promise<ProfileDocument> => {
    await checkReferences(references, tenantId, document)
    await checkPool(tenantId, document)
    return document
  }

  return {
    async create(tenantId: string, input: ProfileInput, writer: Writer): Promise<Profile> {
      const document = await check(tenantId, documentOf(input))
      const profile = await insertProfile(database, tenantId, input.name, input.id ?? newId('prof'), document, writer)
      await broadcast.changed(tenantId)
      return profile
    },
    async replace(
      tenantId: string,
      name: string,
      input: ReplaceProfile,
      versions: Expected['versions'],
      writer: Writer,
    ): Promise<Profile> {
      if (input.name !== undefined && input.name !== name) throw nameMismatch()
      const document = await check(tenantId, documentOf(input))
      const profile = await replaceProfile(database, tenantId, name, { id: input.id, versions }, document, writer)
      await broadcast.changed(tenantId)
      return profile
    },
    /** History is never rewritten: the old state becomes the newest version once more. */
    async restore(
      tenantId: string,
      name: string,
      version: number,
      versions: Expected['versions'],
      { keyId }: Writer,
    ): Promise<Profile> {
      const { document } = await findVersion(database, tenantId, name, version)
      await check(tenantId, document)
      const writer = { keyId, restoredFrom: version }
      const profile = await replaceProfile(database, tenantId, name, { versions }, document, writer)
      await broadcast.changed(tenantId)
      return profile
    },
    async remove(tenantId: string, name: string, versions: Expected['versions']): Promise<void> {
      await deleteProfile(database, tenantId, name, { versions })
      await broadcast.changed(tenantId)
    },
  }
}
export type ProfileService = ReturnType<typeof createProfileService>
