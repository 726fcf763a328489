import type { PlacedProfile, Profiles } from '#contracts/profiles'
import { findProfileIn, type ProfileStore } from './store.ts'

/** A profile takes about ten kilobytes, in the worst case some hundreds. */
const mostRemembered = 1_000

/**
 * Profiles for the plugins that run or publish them. Those that sessions were created from lately are remembered: whoever starts
 * a run with one has the store compare its revision in the statement that starts it, so a profile from memory is as good as one
 * that was read, and costs no round trip.
 */
export function createProfileLookup(store: ProfileStore): Profiles {
  // A Map keeps insertion order, so its first entry is the oldest: that one is dropped when the map is full.
  const known = new Map<string, PlacedProfile>()
  return {
    find: (tenantId, name) => store.find(tenantId, name),
    findIn: findProfileIn,
    async findPlaced(tenantId, name, fresh = false) {
      const key = `${tenantId}\n${name}`
      const remembered = fresh ? undefined : known.get(key)
      if (remembered) return remembered
      const found = await store.findPlaced(tenantId, name)
      known.delete(key)
      if (found) known.set(key, found)
      if (known.size > mostRemembered) known.delete(known.keys().next().value!)
      return found
    },
  }
}
