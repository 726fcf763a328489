import { hashOfSession } from '#contracts/ids'
import type { RunnerPool } from '#contracts/runner'
import { noRunner } from './errors.ts'
import type { Member } from './member.ts'

/** Places sessions on the least busy runner that can execute them, and finds their runner again by the hash in their id. */
export function createPool(members: readonly Member[]): RunnerPool {
  let turn = 0
  return {
    place({ runtime, pool }) {
      turn++
      let best: Member | undefined
      if (pool?.runtimes && !pool.runtimes.includes(runtime)) throw noRunner()
      for (let i = 0; i < members.length; i++) {
        // Equally busy runners take turns.
        const member = members[(turn + i) % members.length]!
        if (!member.live || !member.supports(runtime)) continue
        if (pool?.runners && !pool.runners.includes(member.link.hash)) continue
        if (!best || member.running < best.running) best = member
      }
      if (!best) throw noRunner({ retryable: true })
      return best.link
    },
    owner(sessionId) {
      const hash = hashOfSession(sessionId)
      return hash === undefined ? undefined : members.find((member) => member.link.hash === hash)?.link
    },
    all: () => members.map((member) => member.link),
    fleet: () => members.map((member) => member.describe()),
    onLive(listener) {
      const ends = members.map((member) => member.onLive(() => listener(member.link)))
      return () => ends.forEach((end) => end())
    },
  }
}
