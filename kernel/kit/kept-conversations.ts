/** What the choice of conversations that have to go needs to know of one. */
export interface KeptConversation {
  /** The tenant of its last run. Unknown for a restored one until its first run here. */
  readonly tenantId: string | undefined
  readonly bytes: number
  /** True while a run is in it, or waits for its slot. */
  readonly busy: boolean
  /** True when it was fetched or restored after its last run, so that there is another copy. */
  readonly copied: boolean
}

export interface ConversationLimits {
  readonly sessions: number
  readonly totalBytes: number
}

/** For the runtimes that keep conversations in files. */
export const usualLimits: ConversationLimits = { sessions: 10_000, totalBytes: 2 * 1024 * 1024 * 1024 }

/** How many times as much as the limits say there may be, before conversations go of which there is no copy. */
const uncopiedTimes = 2

/** What a tenant has in a process, and which of it may go, the least recently used first. */
interface Owner {
  sessions: number
  bytes: number
  readonly copied: string[]
  readonly uncopied: string[]
}

/**
 * Which conversations have to go, so that the limits are kept: the least recently used ones, which come first in `kept`, of the tenant that holds
 * the most. What it cannot give up, because runs are in it or nobody has a copy yet, is let be until there is twice as much as the limits say. The
 * newest never goes, because nobody has had the time to fetch it.
 */
export function whatGoes(
  kept: ReadonlyMap<string, KeptConversation>,
  limits: ConversationLimits,
  newest: string,
): readonly string[] {
  const owners = new Map<string | undefined, Owner>()
  const all = { sessions: kept.size, bytes: 0 }
  for (const [sessionId, { tenantId, bytes, busy, copied }] of kept) {
    const owner = owners.get(tenantId) ?? { sessions: 0, bytes: 0, copied: [], uncopied: [] }
    owners.set(tenantId, owner)
    owner.sessions++
    owner.bytes += bytes
    all.bytes += bytes
    if (!busy && sessionId !== newest) (copied ? owner.copied : owner.uncopied).push(sessionId)
  }
  const gone: string[] = []
  const give = (which: 'copied' | 'uncopied', times: number, from: 'the first' | 'any'): void => {
    for (;;) {
      const tooLarge = all.bytes > times * limits.totalBytes
      if (!tooLarge && all.sessions <= times * limits.sessions) return
      let most: Owner | undefined
      for (const owner of owners.values()) {
        if (from === 'any' && owner[which].length === 0) continue
        const measure = tooLarge ? 'bytes' : 'sessions'
        if (!most || owner[measure] > most[measure]) most = owner
      }
      const sessionId = most?.[which].shift()
      if (!most || sessionId === undefined) return
      const { bytes } = kept.get(sessionId)!
      gone.push(sessionId)
      for (const sum of [most, all]) {
        sum.sessions--
        sum.bytes -= bytes
      }
    }
  }
  give('copied', 1, 'the first')
  give('copied', uncopiedTimes, 'any')
  give('uncopied', uncopiedTimes, 'any')
  return gone
}

/**
 * Whether runs of a tenant are in so many bytes of conversations that no further one may begin: those cannot go, and would take the room of
 * others.
 */
export function holdsTooMuch(
  kept: ReadonlyMap<string, KeptConversation>,
  limits: ConversationLimits,
  tenantId: string,
): boolean {
  let held = 0
  for (const conversation of kept.values())
    if (conversation.busy && conversation.tenantId === tenantId) held += conversation.bytes
  return held > limits.totalBytes / 2
}
