import type { AppError } from '#kernel'
import { runnerAway, runnerRefused, workerRefused } from './errors.ts'

export interface Answer {
  readonly status: number
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  /** Undefined when the body was longer than it may be. */
  readonly bytes: Buffer | undefined
}

/** What of a runner's words goes to stderr. */
const maxWords = 500

/** What a status that is no success means for this worker. */
export function refusal(answer: Answer): AppError {
  const { status } = answer
  const words = wordsOf(answer)
  if (status === 401) return workerRefused({ message: `The runner refuses this worker: ${words}` })
  const message = `The runner answers ${status}: ${words}`
  return passing.has(status) ? runnerAway({ message, retryable: true }) : runnerRefused({ message })
}

/** What a runner says that boots, stops or has too much to do, and what stands before it. */
const passing: ReadonlySet<number> = new Set([429, 502, 503, 504])

export function wordsOf({ status, bytes }: Answer): string {
  const said = jsonOf(bytes)
  const words = [said?.['error'], said?.['message']].filter((part) => typeof part === 'string' && part !== '')
  return (words.join(': ') || `status ${status}`).slice(0, maxWords)
}

export function jsonOf(bytes: Buffer | undefined): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(bytes?.toString('utf8') ?? '')
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}
