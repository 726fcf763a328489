import { linesOf } from '#kernel'
import type { Profile } from '#contracts/profiles'
import type { PromptFields } from '#contracts/prompt'
import { parseLine, peekType } from '#contracts/run-event'
import type { LogChunk, RunSummary } from '#contracts/runs'
import type { StateBundle } from '#contracts/runtime'
import type { Session } from '#contracts/sessions'

export interface StoredRun {
  summary: RunSummary
  readonly tenantId: string
  epoch: number
  /** 0 until the run is claimed. */
  ordinal: number
  /** What goes to whoever executes it and is in no summary; kept until the run has ended. */
  input: PromptFields | undefined
  readonly log: LogChunk[]
}

export interface StoredSession {
  dto: Session
  readonly profile: Profile
  claimRun: string | undefined
  epoch: number
  runtimeSessionId: string | undefined
  stateRev: number
  runner: string | undefined
  state: StateBundle | undefined
}

export const keyOf = (tenantId: string, id: string): string => `${tenantId}\n${id}`

/** The answer and the vendor's handle, from the events that carry them. */
export function said(log: LogChunk | undefined): { result?: string; runtimeSessionId?: string } {
  const found: { result?: string; runtimeSessionId?: string } = {}
  for (const line of log ? linesOf(log.lines) : []) {
    const type = peekType(line)
    if (type === 'result') found.result = String(parseLine(line)?.['text'])
    else if (type === 'session_init') found.runtimeSessionId = String(parseLine(line)?.['runtimeSessionId'])
  }
  return found
}
