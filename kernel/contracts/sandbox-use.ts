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

/** What a run used of its sandbox. */
export interface SandboxUse {
  /** Awake before the run and not accounted for. */
  readonly idleSeconds: number
  /** Of the run; all the time until its end unless given. */
  readonly runSeconds?: number
}

/** An idle sandbox is paused long before; it keeps the meter within what can be. */
const mostIdleSeconds = 7 * 24 * 3_600

/** Looks for the event among the lines of a run, as they stream or as they were stored. */
export interface SandboxUseReader {
  /** Undefined: the run has had no sandbox so far. */
  readonly use: SandboxUse | undefined
  /** Lines that are neither progress nor the ones behind it may be left out. */
  read(line: Buffer, seq: number): void
  /** No line from `seq` on says anything more. */
  isPast(seq: number): boolean
}

/**
 * A worker writes events too, and would be believed: so only the line behind the first `runner_accepted` counts, which no
 * worker can write.
 */
export function createSandboxUseReader(): SandboxUseReader {
  let acceptedAt = Infinity
  let decided = false
  let use: SandboxUse | undefined
  return {
    get use() {
      return use
    },
    isPast: (seq) => decided || seq > acceptedAt + 1,
    read(line, seq) {
      if (decided) return
      decided = seq > acceptedAt
      if (seq > acceptedAt + 1 || peekType(line) !== 'progress') return
      const { stage, idleSeconds } = parseLine(line) ?? {}
      if (stage === 'runner_accepted' && !decided) acceptedAt = seq
      if (stage === 'sandbox' && decided) use = { idleSeconds: secondsOf(idleSeconds) }
    },
  }
}

const secondsOf = (value: unknown): number =>
  typeof value === 'number' && value > 0 ? Math.min(Math.round(value), mostIdleSeconds) : 0
