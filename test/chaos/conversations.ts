/** Conversations that can be continued, by profile. */
export interface Conversations {
  take(profile: string): string | undefined
  give(profile: string, id: string): void
}

/** The oldest are forgotten, as people leave. */
const kept = 40

export function createConversations(): Conversations {
  const free = new Map<string, string[]>()
  return {
    take: (profile) => free.get(profile)?.shift(),
    give(profile, id) {
      const list = free.get(profile) ?? []
      free.set(profile, [...list, id].slice(-kept))
    },
  }
}
