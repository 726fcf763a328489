import type { FleetMember, RunnerLink } from '#contracts/runner'
import type { Member } from './member.ts'
import type { RunnerFleet } from './fleet.ts'
import { checkRunnerUrl } from './remote-runner.ts'

/** A runner with what only operators may see of it. */
export interface RunnerAddress {
  /** Empty for the runner of this process. */
  readonly url: string
  readonly hash: string
  readonly state: FleetMember['state']
}

/** Changes the runners of this conductor process; other conductors have to be told themselves. Specification 4.14. */
export interface Membership {
  /** Adds the runners behind these URLs, or those of RUNNER_URLS, and asks the ones that are known again. Removes none. */
  reconcile(urls?: readonly string[]): Promise<readonly (RunnerAddress & { readonly added: boolean })[]>
  /** No new sessions there; undefined for an unknown hash. */
  drain(hash: string): RunnerAddress | undefined
  undrain(hash: string): RunnerAddress | undefined
  /** `unroutableSessions`: how many it still had. Null: not measured. */
  remove(hash: string): Promise<(RunnerAddress & { readonly unroutableSessions: number | null }) | undefined>
}

interface MembershipOptions {
  readonly fleet: RunnerFleet
  /** The URLs of RUNNER_URLS. */
  readonly configured: readonly string[]
  readonly connect: (url: string) => RunnerLink
}

export function createMembership({ fleet, configured, connect }: MembershipOptions): Membership {
  const full = ({ url, link, state }: Member) => ({ url, hash: link.hash, state })
  const drain = (hash: string, on: boolean) => {
    const member = fleet.find(hash)
    if (!member) return undefined
    member.drain(on)
    return full(member)
  }
  return {
    async reconcile(urls = configured) {
      const checked = [...new Set(urls.map(checkRunnerUrl))]
      const touched = checked.map((url) => {
        const present = fleet.at(url)
        return { member: present ?? fleet.add(connect(url), url), added: !present }
      })
      await Promise.all(touched.map(({ member, added }) => (added ? member.start() : member.probe())))
      return touched.map(({ member, added }) => ({ ...full(member), added }))
    },
    drain: (hash) => drain(hash, true),
    undrain: (hash) => drain(hash, false),
    async remove(hash) {
      const member = fleet.find(hash)
      if (!member) return undefined
      await member.probe()
      const { activeSessions } = member.describe()
      fleet.remove(member)
      return { ...full(member), unroutableSessions: activeSessions }
    },
  }
}
