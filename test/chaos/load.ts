import { setTimeout as sleep } from 'node:timers/promises'
import { type Conversations, createConversations } from './conversations.ts'
import type { Observation } from './observed.ts'
import type { Random } from './random.ts'
import { type Agent, chatStreamed, chatWhole, type Client, runDirectly } from './stories.ts'

export interface Load {
  /** What clients know about the runs that were accepted. */
  readonly observed: readonly Observation[]
  readonly begun: number
  /** How many clients ended without an accepted run, e.g. because the service was away for long. */
  readonly refused: number
  /** How many clients are still under way. */
  readonly busy: number
  /** Begins nothing more, and resolves when every client is done. */
  finish(): Promise<void>
}

export interface LoadOptions {
  readonly random: Random
  readonly rate: number
  readonly plain: Agent
  readonly tooled: Agent
  readonly asking: Agent
  readonly client: Client
}

/** Begins chats and runs at a steady rate, without waiting for earlier ones: people do not wait for each other. */
export function startLoad({ random, rate, plain, tooled, asking, client }: LoadOptions): Load {
  const observed: Observation[] = []
  const conversations: Conversations = createConversations()
  let begun = 0
  let refused = 0
  let busy = 0
  const story = async (): Promise<Observation | undefined> => {
    const what = random.next()
    if (what < 0.2) return runDirectly(client, random, what < 0.06 ? asking : plain)
    const agent = random.chance(0.2) ? tooled : plain
    // A conversation is used by one client at a time, as by one person.
    const conversation = random.chance(0.5) ? conversations.take(agent.profile) : undefined
    const habit = random.chance(0.12) ? 'cancels' : random.chance(0.25) ? 'leaves' : 'stays'
    const chat = what < 0.45 ? chatWhole : chatStreamed
    const { observation, conversationId } = await chat(client, random, agent, conversation, habit)
    const goesOn = conversationId ?? conversation
    if (goesOn !== undefined) conversations.give(agent.profile, goesOn)
    return observation
  }
  const begin = (): void => {
    begun++
    busy++
    void story()
      .then((observation) => (observation ? void observed.push(observation) : void refused++))
      .finally(() => {
        busy--
      })
  }
  const timer = setInterval(begin, 1_000 / rate)
  return {
    observed,
    get begun() {
      return begun
    },
    get refused() {
      return refused
    },
    get busy() {
      return busy
    },
    async finish() {
      clearInterval(timer)
      while (busy > 0) await sleep(50)
    },
  }
}
