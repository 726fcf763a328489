import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Random } from '../random.ts'
import { chat, type Target, type Told } from './chats.ts'
import { turnOf, wordMs } from './model.ts'

export interface Load {
  readonly told: readonly Told[]
  readonly begun: number
  readonly busy: number
  /** Begins nothing more, and resolves when every client is done. */
  finish(): Promise<void>
}

interface Conversation {
  readonly id: string
  /** How many turns ended well. */
  readonly turns: number
}

const streamedShare = 0.7
const continuedShare = 0.5
/** The oldest are forgotten, as people leave. */
const kept = 100

/** Begins chats at a steady rate, without waiting for earlier ones. */
export function startLoad(target: Target, random: Random, rate: number, longestSeconds: number): Load {
  const told: Told[] = []
  let conversations: Conversation[] = []
  let begun = 0
  let busy = 0
  const one = async (): Promise<void> => {
    const words = Math.round((random.between(1, longestSeconds) * 1_000) / wordMs)
    const tag = randomBytes(4).toString('hex')
    const streamed = random.chance(streamedShare)
    // A conversation is used by one client at a time, as by one person.
    const before = random.chance(continuedShare) ? conversations.shift() : undefined
    const lived = await chat(target, { words, tag, streamed, conversation: before?.id }, before?.turns ?? 0)
    told.push(lived)
    const id = lived.conversationId ?? before?.id
    const good = turnOf(lived.answer ?? '', words, tag) !== undefined
    if (id !== undefined)
      conversations = [...conversations, { id, turns: (before?.turns ?? 0) + (good ? 1 : 0) }].slice(-kept)
  }
  const began = performance.now()
  // A timer that fires late begins what was due meanwhile: this process is busy, too.
  const timer = setInterval(() => {
    for (const due = ((performance.now() - began) / 1_000) * rate; begun < due;) {
      begun++
      busy++
      void one().finally(() => {
        busy--
      })
    }
  }, 20)
  return {
    told,
    get begun() {
      return begun
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
