import { createHash } from 'node:crypto'
import type { Homecoming } from '#contracts/runner'
import type { Member } from './member.ts'

/** What a session needs of its runner. */
export type Wanted = Pick<Homecoming, 'runtime' | 'pool' | 'substrate' | 'without'>

/** Live members that may take a session: those that certainly can, or if there are none, those that do not say whether they can. */
export function eligible({ runtime, pool, substrate, without }: Wanted, members: readonly Member[]): readonly Member[] {
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

/** Rendezvous hashing: every conductor that knows the same runners chooses the same one, without asking anybody. */
export const rendezvous = (sessionId: string, hash: string): string =>
  createHash('sha256').update(`${sessionId}\n${hash}`).digest('hex')

/** The sentence of a 503: what was asked for and what there is. Tenants read it, so it holds counts and no addresses. */
export function whyNone({ runtime, pool, substrate }: Wanted, members: readonly Member[]): string {
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
