import { type AppError, sseFrame } from '#kernel'
import { isTerminal, type RunSummary } from '#contracts/runs'
import { runLost, upstream } from './errors.ts'

export interface RunIds {
  readonly publicRunId: string
  readonly conversationId: string
}

/** How a public run ended, as clients may know it. */
export interface Outcome {
  readonly status: 'ok' | 'error' | 'lost'
  /** The answer, or a sentence for the client that says what went wrong. */
  readonly message: string
  /** The conductor's code, for operators; clients always see `upstream`. */
  readonly code?: string
  /** Of the terminal event; 0 when there was none. */
  readonly seq: number
  readonly sessionId?: string
  /** What a waiting request answers instead of `upstream`: the conductor did not take the run. */
  readonly refusal?: AppError
}

// What a client can act on. Any other text of a run's error may name providers, addresses or sessions, and stays inside.
const sentences: Readonly<Record<string, string>> = {
  cancelled: 'The run was cancelled.',
  interrupted: 'The run was interrupted by a restart. Send the message again.',
  timeout: 'The agent took too long to answer.',
  lost: 'The run was lost in a restart. Send the message again.',
  unreachable: 'The agent cannot be reached right now. Send the message again later.',
}
const failed = 'The agent could not answer.'

export const errorOutcome = (code: string, seq = 0, sessionId?: string): Outcome => ({
  status: code === 'lost' ? 'lost' : 'error',
  message: sentences[code] ?? failed,
  code,
  seq,
  ...(sessionId === undefined ? {} : { sessionId }),
})

/** The outcome that a terminal `result` or `error` event stands for. */
export function outcomeOfEvent(event: Readonly<Record<string, unknown>>, seq: number): Outcome {
  const sessionId = text(event['sessionId'])
  if (event['type'] === 'error') return errorOutcome(text(event['code']) ?? 'error', seq, sessionId)
  return { status: 'ok', message: text(event['text']) ?? '', seq, ...(sessionId === undefined ? {} : { sessionId }) }
}

/** The same from a run's summary; undefined while it waits or runs. */
export function outcomeOfSummary({ status, error, result, sessionId }: RunSummary): Outcome | undefined {
  if (!isTerminal(status)) return undefined
  if (status === 'ok') return { status: 'ok', message: result ?? '', seq: 0, sessionId }
  return errorOutcome(error?.code ?? status, 0, sessionId)
}

const text = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined)

const bodyIds = ({ publicRunId, conversationId }: RunIds) => ({
  public_run_id: publicRunId,
  conversation_id: conversationId,
})

/** The one terminal frame of a public run. Specification 4.21.1. */
export function terminalFrame(ids: RunIds, { status, message, seq }: Outcome): string {
  const id = seq > 0 ? seq : undefined
  if (status === 'ok') return sseFrame('done', JSON.stringify({ ...bodyIds(ids), message }), id)
  return sseFrame('error', JSON.stringify({ code: 'upstream', message, public_run_id: ids.publicRunId }), id)
}

/** The error that a request answers for a run that did not end well. */
export function outcomeError(ids: RunIds, { status, message, refusal }: Outcome): AppError {
  if (refusal) return refusal
  return (status === 'lost' ? runLost : upstream)({ message, detail: bodyIds(ids) })
}
