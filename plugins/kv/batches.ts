import { storeFull } from './errors.ts'

/** Statements under way at once: one more than needed to keep the server busy while another's answer travels. */
const lanes = 2
const groupSize = 64
/** Of a server that is slow; whoever asks beyond that is refused. */
const mostWaiting = 10_000

interface Waiting<Item, Result> {
  readonly item: Item
  readonly resolve: (result: Result) => void
  readonly reject: (error: unknown) => void
}

/**
 * Asks the same of the server for many callers in one statement: alone a caller's item leaves at once, and while the lanes
 * are taken items wait together. `send` resolves to the result of each.
 */
export function createBatches<Item, Result>(
  send: (items: readonly Item[]) => Promise<readonly Result[]>,
): (item: Item) => Promise<Result> {
  const waiting: Waiting<Item, Result>[] = []
  let busy = 0
  const carry = async (group: readonly Waiting<Item, Result>[]): Promise<void> => {
    try {
      const results = await send(group.map(({ item }) => item))
      group.forEach(({ resolve }, i) => resolve(results[i]!))
    } catch (error) {
      for (const { reject } of group) reject(error)
    }
    busy--
    pump()
  }
  const pump = (): void => {
    while (busy < lanes && waiting.length > 0) {
      busy++
      void carry(waiting.splice(0, groupSize))
    }
  }
  return (item) =>
    new Promise((resolve, reject) => {
      if (waiting.length >= mostWaiting) return reject(storeFull())
      waiting.push({ item, resolve, reject })
      pump()
    })
}
