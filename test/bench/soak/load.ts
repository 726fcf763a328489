import { setTimeout as sleep } from 'node:timers/promises'
import { openLoop } from '../open-loop.ts'
import { deck, type Story } from './stories.ts'
import type { World } from './world.ts'

export interface Load {
  readonly begun: number
  readonly underWay: number
  readonly errors: number
  /** How often each thing went wrong. */
  readonly messages: ReadonlyMap<string, number>
  /** Resolves when every story is over. */
  readonly over: Promise<void>
}

/** Begins stories at a steady rate, without waiting for earlier ones: people do not wait for each other. */
export function startLoad(world: World, perSecond: number, durationMs: number): Load {
  const messages = new Map<string, number>()
  const load = { begun: 0, underWay: 0, errors: 0, messages }
  let cards: Story[] = []
  const next = (): Story => {
    if (cards.length === 0) cards = shuffled(deck, world)
    return cards.pop()!
  }
  const tell = async (): Promise<void> => {
    const story = next()
    load.begun++
    load.underWay++
    try {
      await story(world)
    } catch (error) {
      load.errors++
      const text = error instanceof Error ? `${error.message}${causeOf(error)}` : String(error)
      messages.set(text, (messages.get(text) ?? 0) + 1)
    } finally {
      load.underWay--
    }
  }
  const clock = { now: () => performance.now(), sleep: (ms: number) => sleep(ms) }
  return Object.assign(load, { over: openLoop(perSecond, durationMs, tell, clock) })
}

const causeOf = ({ cause }: Error): string => (cause instanceof Error ? ` (${cause.message})` : '')

function shuffled(stories: readonly Story[], { random }: World): Story[] {
  const cards = [...stories]
  for (let i = cards.length - 1; i > 0; i--) {
    const j = Math.floor(random.next() * (i + 1))
    ;[cards[i], cards[j]] = [cards[j]!, cards[i]!]
  }
  return cards
}
