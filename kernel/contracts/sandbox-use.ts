import { parseLine, peekType, type ProgressEvent } from './run-event.ts'
import type { Static } from '@sinclair/typebox'

/** The event that tells a run's readers about its sandbox. The runner writes it, right behind its `runner_accepted`. */
export type SandboxEvent = Static<typeof ProgressEvent> & {
  readonly stage: 'sandbox'
  readonly provider: string
  /** `running`: it was there. */
  readonly start: 'launched' | 'warm' | 'resumed' | 'running'
  /** How long the start took. */
  readonly startMs: number
  /** How long it was awake without a run since the former one. */
  readonly idleSeconds: number
}

/** What a run used of its sandbox beside its own duration. */
export interface SandboxUse {
  readonly idleSeconds: number
}

/** An idle sandbox is paused long before; it keeps the meter within what can be. */
const mostIdleSeconds = 7 * 24 * 3_600

/** Looks for the event among the lines of a run, as they stream or as they were stored. */
export interface SandboxUseReader {
  /** Undefined: the run has had no sandbox so far. */
  readonly use: SandboxUse | undefined
  /** Every line in its order, or of each attempt the first ones. */
  read(line: Buffer): void
}

/**
 * A worker writes events too, and would be believed: so only the line behind the first `runner_accepted` counts, which no
 * worker can write.
 */
export function createSandboxUseReader(): SandboxUseReader {
  let accepted = false
  let decided = false
  let use: SandboxUse | undefined
  return {
    get use() {
      return use
    },
    read(line) {
      if (decided) return
      const event = peekType(line) === 'progress' ? parseLine(line) : undefined
      if (accepted) {
        decided = true
        if (event?.['stage'] === 'sandbox') use = { idleSeconds: secondsOf(event['idleSeconds']) }
      } else accepted = event?.['stage'] === 'runner_accepted'
    },
  }
}

const secondsOf = (value: unknown): number =>
  typeof value === 'number' && value > 0 ? Math.min(Math.round(value), mostIdleSeconds) : 0
