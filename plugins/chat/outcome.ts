import { sseFrame } from '#kernel'
import { toldOf } from '#contracts/endings'

export interface RunIds {
  readonly publicRunId: string
  readonly conversationId: string
}

/** How a public run ended, as clients may know it. */
export interface Outcome {
  readonly status: 'ok' | 'error' | 'lost'
  /** The answer, or a sentence for the client that says what went wrong. */
  readonly message: string
  /** Of the terminal event; 0 when there was none. */
  readonly seq: number
}

/** Sentences of endings that no run has: it never came to be, or nobody can say what became of it. */
export const sentences = {
  lost: 'The run was lost in a restart. Send the message again.',
  unreachable: 'The agent cannot be reached right now. Send the message again later.',
} as const

/** The outcome that a terminal `result` or `error` event stands for. It hides what an error says: that may name providers, addresses or sessions. */
export function outcomeOfEvent(event: Readonly<Record<string, unknown>>, seq: number): Outcome {
  if (event['type'] === 'error') return { status: 'error', message: toldOf(text(event['code'])), seq }
  return { status: 'ok', message: text(event['text']), seq }
}

const text = (value: unknown): string => (typeof value === 'string' ? value : '')

export const bodyIds = ({ publicRunId, conversationId }: RunIds) => ({
  public_run_id: publicRunId,
  conversation_id: conversationId,
})

/** The one terminal frame of a public run. Specification 4.21.1. */
export function terminalFrame(ids: RunIds, { status, message, seq }: Outcome): string {
  const id = seq > 0 ? seq : undefined
  if (status === 'ok') return sseFrame('done', JSON.stringify({ ...bodyIds(ids), message }), id)
  return sseFrame('error', JSON.stringify({ code: 'upstream', message, public_run_id: ids.publicRunId }), id)
}
