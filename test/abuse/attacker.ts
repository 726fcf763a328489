// One attack, in a process of its own: what it costs to send is not the victim's client's.
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Hostile } from './attack.ts'
import { attacks } from './attacks.ts'

export interface Order {
  readonly attack: string
  readonly hostile: Hostile
}
/** `ready`: prepared, and under way. `done`: what its requests were answered, by status. */
export type Word = { readonly ready: true } | { readonly answers: Readonly<Record<string, number>> }

/** What still waits for its turn this long after it was told to stop is left alone. It can take half a minute: some requests follow another. */
const graceMs = 10_000

const stop = new AbortController()
const answers = new Map<string, number>()
const told = (status: number | string): void => void answers.set(String(status), (answers.get(String(status)) ?? 0) + 1)

process.on('message', (message: Order | 'stop') => {
  if (message === 'stop') return stop.abort()
  void attack(message)
})
process.once('disconnect', () => process.exit())

async function attack({ attack: name, hostile }: Order): Promise<void> {
  const chosen = attacks.find((one) => one.name === name)!
  await chosen.prepare?.(hostile, told)
  answers.clear()
  process.send!({ ready: true } satisfies Word)
  const over = once(stop.signal, 'abort').then(() => sleep(graceMs))
  await Promise.race([chosen.run(hostile, told, stop.signal), over])
  process.send!({ answers: Object.fromEntries(answers) } satisfies Word)
}
