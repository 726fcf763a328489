import type { RunnerLink, RunnerMembership } from '#contracts/runner'
import type { Member, Pool } from './pool.ts'
import { checkRunnerUrl } from './remote-runner.ts'

interface MembershipOptions {
  readonly pool: Pool
  /** The URLs of RUNNER_URLS. */
  readonly configured: readonly string[]
  readonly connect: (url: string) => RunnerLink
}

/** Changes of the runners of this process, by an operator. */
export function createMembership({ pool, configured, connect }: MembershipOptions): RunnerMembership {
  const full = ({ url, link, state }: Member) => ({ url, hash: link.hash, state })
  const drain = (hash: string, on: boolean) => {
    const member = pool.find(hash)
    if (!member) return undefined
    member.drain(on)
    return full(member)
  }
  return {
    async reconcile(urls = configured) {
      const checked = [...new Set(urls.map(checkRunnerUrl))]
      const touched = checked.map((url) => {
        const present = pool.at(url)
        return { member: present ?? pool.add(connect(url), url), added: !present }
      })
      await Promise.all(touched.map(({ member, added }) => (added ? member.start() : member.probe())))
      return touched.map(({ member, added }) => ({ ...full(member), added }))
    },
    drain: (hash) => drain(hash, true),
    undrain: (hash) => drain(hash, false),
    async remove(hash) {
      const member = pool.find(hash)
      if (!member) return undefined
      await member.probe()
      const { activeSessions } = member.describe()
      pool.remove(member)
      return { ...full(member), unroutableSessions: activeSessions }
    },
  }
}
