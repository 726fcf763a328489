import { type Message, repaired, sizeOf } from './messages.ts'

/** One run in the history: the user's prompt and what followed. Trimmed only as a whole, so pairs stay together. */
export interface Turn {
  readonly messages: readonly Message[]
  readonly size: number
  /** The run that said it; not known of what came in a bundle. */
  readonly runId?: string
}

export interface HistoryLimits {
  readonly sessions: number
  /** Characters of one session; about 100,000 tokens. */
  readonly sessionChars: number
  readonly sessionMessages: number
  /** Characters of all sessions of this process. */
  readonly totalChars: number
}
const defaults: HistoryLimits = {
  sessions: 10_000,
  sessionChars: 400_000,
  sessionMessages: 400,
  totalChars: 128_000_000,
}

/** The conversations of this process. Bounded: the oldest turns of a session go first, then the least recently used sessions. */
export interface History {
  messages(sessionId: string): readonly Message[]
  turns(sessionId: string): readonly Turn[] | undefined
  append(sessionId: string, messages: readonly Message[], runId?: string): void
  /** Takes back what a former attempt of this run has left: the run is about to say it again. */
  withdraw(sessionId: string, runId: string): void
  replace(sessionId: string, turns: readonly (readonly Message[])[]): void
  forget(sessionId: string): void
}

interface Session {
  readonly turns: readonly Turn[]
  readonly size: number
}

export function createHistory(limits: HistoryLimits = defaults): History {
  // A Map keeps insertion order: re-inserting on use makes it a list of least recently used sessions.
  const sessions = new Map<string, Session>()
  let total = 0
  const remove = (sessionId: string): void => {
    total -= sessions.get(sessionId)?.size ?? 0
    sessions.delete(sessionId)
  }
  const store = (sessionId: string, turns: readonly Turn[]): void => {
    remove(sessionId)
    const kept = newest(turns, limits)
    const size = kept.reduce((sum, turn) => sum + turn.size, 0)
    sessions.set(sessionId, { turns: kept, size })
    total += size
    for (const oldest of sessions.keys()) {
      if (sessions.size <= limits.sessions && total <= limits.totalChars) break
      remove(oldest)
    }
  }
  const turnOf = (messages: readonly Message[]): Turn => fit(repaired(messages), limits.sessionChars)
  return {
    messages: (sessionId) => sessions.get(sessionId)?.turns.flatMap((turn) => turn.messages) ?? [],
    turns: (sessionId) => sessions.get(sessionId)?.turns,
    append(sessionId, messages, runId) {
      const turn = { ...turnOf(messages), ...(runId === undefined ? {} : { runId }) }
      store(sessionId, [...(sessions.get(sessionId)?.turns ?? []), turn])
    },
    withdraw(sessionId, runId) {
      const turns = sessions.get(sessionId)?.turns
      if (turns?.at(-1)?.runId !== runId) return
      if (turns.length > 1) store(sessionId, turns.slice(0, -1))
      else remove(sessionId)
    },
    replace(sessionId, turns) {
      store(
        sessionId,
        turns.map((messages) => turnOf(messages)),
      )
    },
    forget: remove,
  }
}

function newest(turns: readonly Turn[], limits: HistoryLimits): readonly Turn[] {
  let size = 0
  let messages = 0
  let from = turns.length
  while (from > 0) {
    const turn = turns[from - 1]!
    size += turn.size
    messages += turn.messages.length
    // The newest turn always stays: without it the next question would have nothing to refer to.
    if (from < turns.length && (size > limits.sessionChars || messages > limits.sessionMessages)) break
    from--
  }
  return turns.slice(from)
}

const total = (messages: readonly Message[]): number => messages.reduce((sum, message) => sum + sizeOf(message), 0)

/** A turn larger than a whole session may be keeps its question and its last answer, each cut to half of the room. */
function fit(messages: readonly Message[], limit: number): Turn {
  const size = total(messages)
  if (size <= limit) return { messages, size }
  const texts = (role: Message['role'], text: string): Message[] =>
    text === '' ? [] : [{ role, content: [{ type: 'text', text: text.slice(0, limit >> 1) }] } as Message]
  const question = messages.find((message) => message.role === 'user')
  const answer = messages.findLast((message) => message.role === 'assistant')
  const kept = [...texts('user', textOf(question)), ...texts('assistant', textOf(answer))]
  return { messages: kept, size: total(kept) }
}

const textOf = (message: Message | undefined): string =>
  (message?.content ?? []).map((part) => (part.type === 'text' ? part.text : '')).join('')
