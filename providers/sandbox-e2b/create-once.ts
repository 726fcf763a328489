import { setTimeout as sleep } from 'node:timers/promises'
import { NoAnswer } from '#kit'
import type { E2bApi, NewSandbox, StartedSandbox } from './api.ts'
import { E2bError } from './errors.ts'
import { labels } from './order.ts'

/** When to look for a sandbox whose creation was not answered: it may be there at once, or take as long as a start takes. */
const looksMs = [0, 500, 1_500, 3_000]
/** How long E2B is given to find room before it is asked again. */
const roomMs = [500, 2_000]

/**
 * Creates a sandbox, and never two: E2B takes no key for a repeated request, so one that may have been done is not repeated
 * but looked for by its name.
 */
export async function createOnce(api: E2bApi, sandbox: NewSandbox): Promise<StartedSandbox> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await api.create(sandbox)
    } catch (error) {
      const wait = roomMs[attempt]
      if (isFull(error) && wait !== undefined) {
        await sleep(wait)
        continue
      }
      if (!mayBeDone(error)) throw error
      const found = await findByName(api, sandbox.metadata[labels.name]!)
      if (found === undefined) throw error
      // Gives out the access token again.
      return await api.connect(found, sandbox.timeout)
    }
  }
}

/** E2B itself says that it has no room at the moment, and made none. */
const isFull = (error: unknown): boolean => error instanceof E2bError && error.status === 503 && error.itsOwn

/** A failure that E2B itself reports is one: it made no sandbox. One of a proxy on the way says nothing. */
const mayBeDone = (error: unknown): boolean =>
  error instanceof NoAnswer ? error.asked : error instanceof E2bError && error.status >= 500 && !error.itsOwn

async function findByName(api: E2bApi, name: string): Promise<string | undefined> {
  for (const wait of looksMs) {
    await sleep(wait)
    const found = await api.find({ [labels.name]: name }).catch(() => [])
    if (found[0] !== undefined) return found[0]
  }
  return undefined
}
