import { parseLine, createEventEncoder } from '#contracts/run-event'
import type { Claim } from '#contracts/run-store'
import type { LogChunk } from '#contracts/runs'
import { afterAttempts, isLost, orphaned } from './attempts.ts'
import type { Ending } from './runner-events.ts'

/** Why the conductor itself ends a run. */
export type Stop = Extract<Ending, { code: string }>

export const ownerDied: Stop = { status: 'interrupted', ...orphaned(1) }

export const lostStream: Stop = {
  status: 'error',
  code: 'runner_lost',
  message: 'The runner went away before the run ended.',
}

export const tooExpensive: Stop = {
  status: 'error',
  code: 'budget_exceeded',
  message: 'The run has cost more than it may.',
}

export const line = (seq: number, text: string | Buffer): LogChunk => ({
  firstSeq: seq,
  count: 1,
  lines: typeof text === 'string' ? Buffer.from(text) : text,
})

/** The end of a run that was lost again and again says how often. */
export function toldOf(last: Ending, attempt: number): Ending {
  if (last.status === 'ok' || attempt === 1 || !(isLost(last) || last === ownerDied)) return last
  const retryable = last.line !== undefined && parseLine(last.line)?.['retryable'] === true
  const { line: _, ...told } = last
  return { ...told, message: afterAttempts(last.message, attempt), ...(retryable ? { retryable } : {}) }
}

export const errorLine = (claim: Claim, seq: number, { code, message, retryable }: Stop): string =>
  createEventEncoder(claim.runId, claim.sessionId, seq).line({
    type: 'error',
    code,
    message,
    ...(retryable ? { retryable } : {}),
  })
