import type { FastifyBaseLogger } from 'fastify'
import type { RunnerLink } from '#contracts/runner'
import { createMember, type Member } from './member.ts'

/** The runners of this conductor process, in the order in which they were added. */
export interface Registry {
  /** Each runner once: two URLs whose runners report one hash are one runner. */
  members(): readonly Member[]
  find(hash: string): Member | undefined
  /** The member behind this very URL. */
  at(url: string): Member | undefined
  add(link: RunnerLink, url: string): Member
  remove(member: Member): void
  onLive(listener: (link: RunnerLink) => void): () => void
  onDraining(listener: (link: RunnerLink) => void): () => void
  stop(): void
}

export interface RegistryOptions {
  readonly intervalMs: number
  readonly log: FastifyBaseLogger
}

export function createRegistry({ intervalMs, log }: RegistryOptions): Registry {
  const all = new Set<Member>()
  const live = createListeners(log)
  const draining = createListeners(log)
  const warned = new Set<string>()
  let known: { readonly members: readonly Member[]; readonly byHash: ReadonlyMap<string, Member> } | undefined

  const look = () => {
    const byHash = new Map<string, Member>()
    const members: Member[] = []
    for (const member of all) {
      const hash = hashOf(member)
      const first = hash === undefined ? undefined : byHash.get(hash)
      if (hash === undefined || !first) {
        members.push(member)
        if (hash !== undefined) byHash.set(hash, member)
        continue
      }
      warnOnce(first, member, hash)
      if (first.state !== 'unreachable' || member.state === 'unreachable') continue
      members[members.indexOf(first)] = member
      byHash.set(hash, member)
    }
    return { members, byHash }
  }
  const warnOnce = (first: Member, second: Member, hash: string): void => {
    const key = `${first.url} ${second.url}`
    if (warned.has(key)) return
    warned.add(key)
    log.warn({ runner: hash, urls: [first.url, second.url] }, 'two URLs lead to one runner; remove one of them')
  }
  const changed = (): void => {
    known = undefined
  }
  const now = () => (known ??= look())
  return {
    members: () => now().members,
    find: (hash) => now().byHash.get(hash),
    at: (url) => [...all].find((member) => member.url === url),
    add(link, url) {
      const member = createMember(link, {
        url,
        intervalMs,
        log,
        onLive: (m) => live.call(m.link),
        onDraining: (m) => draining.call(m.link),
        onChange: changed,
      })
      all.add(member)
      changed()
      return member
    },
    remove(member) {
      member.stop()
      all.delete(member)
      changed()
    },
    onLive: live.add,
    onDraining: draining.add,
    stop() {
      for (const member of all) member.stop()
    },
  }
}

/** Undefined for a runner of this process that does not know its address yet. */
function hashOf(member: Member): string | undefined {
  try {
    return member.link.hash
  } catch {
    return undefined
  }
}

/** What one listener throws is its own: the others and the probe go on. */
function createListeners(log: FastifyBaseLogger) {
  const listeners = new Set<(link: RunnerLink) => void>()
  return {
    add(listener: (link: RunnerLink) => void): () => void {
      listeners.add(listener)
      return () => void listeners.delete(listener)
    },
    call(link: RunnerLink): void {
      for (const listener of listeners) {
        try {
          listener(link)
        } catch (err) {
          log.error({ err }, 'a listener of the runner pool failed')
        }
      }
    },
  }
}
