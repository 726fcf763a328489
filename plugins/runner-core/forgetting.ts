import type { RunnerSession } from '#contracts/runner'

/** Sidecars that are told to forget sessions which left memory here. */
export interface Forgetting {
  begin(session: RunnerSession): void
  /** Before a session comes back: resolves once its sidecar has been told, or it would forget the conversation that is brought now. */
  finish(sessionId: string): Promise<void> | undefined
}

/** A sweep lets go of all the sessions of a minute: told all at once, each would be a connection of its own. */
const atOnce = 16

/** `tell` never rejects. */
export function createForgetting(tell: (session: RunnerSession) => Promise<void>): Forgetting {
  const waiting = new Map<string, RunnerSession>()
  const underWay = new Map<string, Promise<void>>()
  const start = (session: RunnerSession): Promise<void> => {
    waiting.delete(session.id)
    const told = tell(session).finally(() => {
      underWay.delete(session.id)
      next()
    })
    underWay.set(session.id, told)
    return told
  }
  const next = (): void => {
    for (const session of waiting.values()) {
      if (underWay.size >= atOnce) return
      void start(session)
    }
  }
  return {
    begin(session) {
      waiting.set(session.id, session)
      next()
    },
    finish(sessionId) {
      const session = waiting.get(sessionId)
      return session ? start(session) : underWay.get(sessionId)
    },
  }
}
