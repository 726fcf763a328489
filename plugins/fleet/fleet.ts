import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { unavailable } from '#kernel'
import { hashOfSession } from '#contracts/ids'
import { fleetErrors } from '#contracts/run-errors'
import type { Fleet, FleetMember, Homecoming, Placement, RunnerLink } from '#contracts/runner'
import { type FleetOptions, Member, type RunnerNews } from './member.ts'
import { keysDiffer } from './remote-runner.ts'

type Listener = (link: RunnerLink) => void

/**
 * The runners of this conductor process, in the order in which they were added. Places sessions on the least busy one that can
 * execute them, and finds the runner of a session again.
 */
export class RunnerFleet implements Fleet {
  readonly options: FleetOptions
  readonly #all = new Set<Member>()
  readonly #listeners = { live: new Set<Listener>(), draining: new Set<Listener>() }
  readonly #warned = new Set<string>()
  /** Each runner once, by its hash, until something changes. Two URLs whose runners report one hash are one runner. */
  #known: Map<string | undefined, Member> | undefined
  // Starts at random, so that conductors that start together do not all begin with the same runner.
  #turn = Math.floor(Math.random() * 1_000)

  constructor(options: FleetOptions) {
    this.options = options
  }

  add(link: RunnerLink, url: string): Member {
    const member = new Member(link, url, this)
    this.#all.add(member)
    this.changed()
    return member
  }
  remove(member: Member): void {
    member.stop()
    this.#all.delete(member)
    this.changed()
  }
  stop(): void {
    for (const member of this.#all) member.stop()
  }
  members(): readonly Member[] {
    return [...this.#byHash.values()]
  }
  find(hash: string): Member | undefined {
    return this.#byHash.get(hash)
  }
  /** The members that lead to one runner: one for each of its URLs. */
  allOf(hash: string): readonly Member[] {
    return [...this.#all].filter((member) => hashOf(member) === hash)
  }
  /** The member with exactly this URL. */
  at(url: string): Member | undefined {
    return [...this.#all].find((member) => member.url === url)
  }

  place(order: Placement): RunnerLink {
    const candidates = eligible(order, this.members())
    this.#turn++
    let best: Member | undefined
    for (let i = 0; i < candidates.length; i++) {
      // Equally busy runners take turns.
      const member = candidates[(this.#turn + i) % candidates.length]!
      if (!best || member.load < best.load) best = member
    }
    if (!best) throw this.#refusal(order)
    return best.link
  }
  home(order: Homecoming): RunnerLink {
    const { sessionId, without, runner = hashOfSession(sessionId) } = order
    const own = runner === undefined || without?.has(runner) ? undefined : this.find(runner)
    const here = own?.state === 'unreachable' ? undefined : own
    // A restorable session avoids a runner that is about to stop: a call at the moment of its end gets no answer, and the caller cannot know
    // whether the runner took the run.
    if (here && !(order.stored && here.stopping)) return here.link
    const [chosen] = eligible(order, this.members())
      .map((member) => ({ member, weight: rendezvous(sessionId, member.link.hash) }))
      .toSorted((a, b) => (a.weight < b.weight ? 1 : -1))
    const link = chosen?.member.link ?? here?.link
    if (!link) throw this.#refusal(order)
    return link
  }
  owner(sessionId: string, runner = hashOfSession(sessionId)): RunnerLink | undefined {
    return runner === undefined ? undefined : this.find(runner)?.link
  }
  readonly all = (): readonly RunnerLink[] => this.members().map((member) => member.link)
  readonly describe = (): readonly FleetMember[] => this.members().map((member) => member.describe())
  readonly askAll: Fleet['askAll'] = async (ask, ms) => {
    const present = this.members().filter(({ state }) => state !== 'unreachable')
    const signal = AbortSignal.timeout(ms)
    // Abort here too, because a link need not observe its signal.
    const late = once(signal, 'abort').then(() => Promise.reject(signal.reason as Error))
    late.catch(() => {})
    const answers = await Promise.allSettled(present.map(({ link }) => Promise.race([ask(link, signal), late])))
    return answers.flatMap((answer, i) => {
      if (answer.status === 'fulfilled') return [answer.value]
      this.options.log.warn({ err: answer.reason, runner: present[i]!.link.hash }, 'a runner did not answer in time')
      return []
    })
  }
  /** Rejects when no runner can be reached. */
  readonly ready = async (): Promise<void> => {
    const members = this.members()
    if (members.some((member) => member.state !== 'unreachable')) return
    if (members.some(({ refused }) => refused)) throw unavailable({ message: keysDiffer })
    throw new Error('no runner is live')
  }
  readonly onLive = (listener: Listener): (() => void) => this.#listen('live', listener)
  readonly onDraining = (listener: Listener): (() => void) => this.#listen('draining', listener)

  /** Called when the hash or the state of a runner may have changed. */
  changed(): void {
    this.#known = undefined
  }
  /** Calls the listeners. A listener that throws stops neither the others nor the probe. */
  tell(news: RunnerNews, link: RunnerLink): void {
    for (const listener of this.#listeners[news]) {
      try {
        listener(link)
      } catch (err) {
        this.options.log.error({ err }, 'a listener of the fleet failed')
      }
    }
  }

  get #byHash(): ReadonlyMap<string | undefined, Member> {
    if (this.#known) return this.#known
    const known = (this.#known = new Map<string | undefined, Member>())
    for (const member of this.#all) {
      const hash = hashOf(member)
      const first = known.get(hash)
      const urls = first && [first.url, member.url]
      if (urls && !this.#warned.has(urls.join(' '))) {
        this.#warned.add(urls.join(' '))
        this.options.log.warn({ runner: hash, urls }, 'two URLs lead to one runner; remove one of them')
      }
      if (!first || (first.state === 'unreachable' && member.state !== 'unreachable')) known.set(hash, member)
    }
    return known
  }
  #listen(news: RunnerNews, listener: Listener): () => void {
    this.#listeners[news].add(listener)
    return () => void this.#listeners[news].delete(listener)
  }
  #refusal(order: SessionNeeds): Error {
    return fleetErrors.noRunner({ message: whyNone(order, this.members()) })
  }
}

/** Undefined for the runner of this process until it knows its own address. */
function hashOf(member: Member): string | undefined {
  try {
    return member.link.hash
  } catch {
    return undefined
  }
}

/** The requirements of a session on its runner. */
type SessionNeeds = Pick<Homecoming, 'runtime' | 'pool' | 'substrate' | 'without'>

/** Live members that may take a session: those that certainly can. If there are none, those that do not say whether they can. */
function eligible({ runtime, pool, substrate, without }: SessionNeeds, members: readonly Member[]): readonly Member[] {
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

/** Rendezvous hashing: every conductor that knows the same runners chooses the same runner, without communication. */
const rendezvous = (sessionId: string, hash: string): string =>
  createHash('sha256').update(`${sessionId}\n${hash}`).digest('hex')

/** The sentence of a 503: what was requested and what exists. Tenants read it, so it holds counts and no addresses. */
function whyNone({ runtime, pool, substrate }: SessionNeeds, members: readonly Member[]): string {
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
