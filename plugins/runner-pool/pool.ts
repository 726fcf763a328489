import { createHash } from 'node:crypto'
import { appError } from '#kernel'
import { hashOfSession } from '#contracts/ids'
import type { Homecoming, RunnerLink, RunnerMembership, RunnerPool } from '#contracts/runner'
import type { Member, Registry } from './members.ts'
import { checkRunnerUrl } from './remote-runner.ts'

const noRunner = appError('no_runner', 503)

/** Places sessions on the least busy runner that can execute them, and finds the runner of a session again. */
export function createPool(registry: Registry): RunnerPool {
  // Conductors that start together do not begin with the same runner.
  let turn = Math.floor(Math.random() * 1_000)
  const refuse = (order: Omit<Homecoming, 'sessionId'>) =>
    noRunner({ retryable: true, message: whyNone(order, registry.members()) })

  return {
    place(order) {
      const candidates = eligible(order, registry.members())
      turn++
      let best: Member | undefined
      for (let i = 0; i < candidates.length; i++) {
        // Equally busy runners take turns.
        const member = candidates[(turn + i) % candidates.length]!
        if (!best || member.load < best.load) best = member
      }
      if (!best) throw refuse(order)
      return best.link
    },
    home(order) {
      const { sessionId, without, runner = hashOfSession(sessionId) } = order
      const own = runner === undefined || without?.has(runner) ? undefined : registry.find(runner)
      if (own && own.state !== 'unreachable') return own.link
      // Rendezvous hashing: every conductor that knows the same runners chooses the same one, without asking anybody.
      const [chosen] = eligible(order, registry.members())
        .map((member) => ({ member, weight: weightOf(sessionId, member.link.hash) }))
        .toSorted((a, b) => (a.weight < b.weight ? 1 : -1))
      if (!chosen) throw refuse(order)
      return chosen.member.link
    },
    owner(sessionId, runner = hashOfSession(sessionId)) {
      return runner === undefined ? undefined : registry.find(runner)?.link
    },
    all: () => registry.members().map((member) => member.link),
    fleet: () => registry.members().map((member) => member.describe()),
    onLive: registry.onLive,
    onDraining: registry.onDraining,
  }
}

interface MembershipOptions {
  readonly registry: Registry
  /** The URLs of RUNNER_URLS. */
  readonly configured: readonly string[]
  readonly connect: (url: string) => RunnerLink
}

/** Changes of the runners of this process, by an operator. */
export function createMembership({ registry, configured, connect }: MembershipOptions): RunnerMembership {
  const full = ({ url, link, state }: Member) => ({ url, hash: link.hash, state })
  const drain = (hash: string, on: boolean) => {
    const member = registry.find(hash)
    if (!member) return undefined
    member.drain(on)
    return full(member)
  }
  return {
    async reconcile(urls = configured) {
      const checked = [...new Set(urls.map(checkRunnerUrl))]
      const touched = checked.map((url) => {
        const present = registry.at(url)
        return { member: present ?? registry.add(connect(url), url), added: !present }
      })
      await Promise.all(touched.map(({ member, added }) => (added ? member.start() : member.probe())))
      return touched.map(({ member, added }) => ({ ...full(member), added }))
    },
    drain: (hash) => drain(hash, true),
    undrain: (hash) => drain(hash, false),
    async remove(hash) {
      const member = registry.find(hash)
      if (!member) return undefined
      await member.probe()
      const { activeSessions } = member.describe()
      registry.remove(member)
      return { ...full(member), unroutableSessions: activeSessions }
    },
  }
}

type Wanted = Pick<Homecoming, 'runtime' | 'pool' | 'substrate' | 'without'>

/** Live members that may take a session; those that certainly can, or else those that do not know themselves. */
function eligible({ runtime, pool, substrate, without }: Wanted, members: readonly Member[]): readonly Member[] {
  if (runtime !== undefined && pool?.runtimes && !pool.runtimes.includes(runtime)) return []
  const allowed = members.filter(
    ({ state, link }) =>
      state === 'live' && !without?.has(link.hash) && (!pool?.runners || pool.runners.includes(link.hash)),
  )
  const can = (member: Member): readonly (boolean | undefined)[] => [
    runtime === undefined || member.supports(runtime),
    substrate === undefined || member.hasSubstrate(substrate),
  ]
  const able = allowed.filter((member) => can(member).every((yes) => yes === true))
  return able.length > 0 ? able : allowed.filter((member) => !can(member).includes(false))
}

const weightOf = (sessionId: string, hash: string): string =>
  createHash('sha256').update(`${sessionId}\n${hash}`).digest('hex')

/** What was asked for and what there is, in counts only: tenants see this sentence. */
function whyNone({ runtime, pool, substrate }: Wanted, members: readonly Member[]): string {
  const inPool = pool ? ' in its pool' : ''
  const inSandbox =
    substrate === undefined
      ? ''
      : substrate === true
        ? ' in a sandbox of its default provider'
        : ` in a sandbox of '${substrate}'`
  const wanted = `${runtime === undefined ? 'the session' : `a session of the runtime '${runtime}'`}${inSandbox}${inPool}`
  const count = (state: string): number => members.filter((member) => member.state === state).length
  const alive = members.filter((member) => member.state === 'live').map((member) => member.describe())
  const listed = (names: readonly string[]): string => [...new Set(names)].toSorted().join(', ')
  const unable = runtime !== undefined && members.every((member) => member.supports(runtime) === false)
  const needs = unable ? alive.map(({ missing }) => missing?.[runtime]).find((why) => why !== undefined) : undefined
  if (needs !== undefined) return needs
  const runtimes = listed(alive.flatMap(({ capabilities }) => capabilities))
  const sandboxes = listed(alive.flatMap(({ substrates }) => substrates)) || 'none'
  const offered = [...(runtimes ? [runtimes] : []), ...(substrate === undefined ? [] : [`sandboxes: ${sandboxes}`])]
  const undecided = substrate === true && alive.length > 0 && alive.every(({ defaultSubstrate }) => !defaultSubstrate)
  const advice = undecided && sandboxes !== 'none' ? 'Name one as sandbox.provider of the profile.' : 'Try again.'
  const live = `${count('live')} live${offered.length > 0 ? ` (${offered.join('; ')})` : ''}`
  return `No runner can take ${wanted} now: ${live}, ${count('draining')} draining, ${count('unreachable')} unreachable. ${advice}`
}
