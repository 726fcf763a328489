import { maxAttachmentChars } from '#contracts/prompt'
import { fileSizeOf, type Message, repaired, sizeOf, textPart, withoutFiles, withoutReasoning } from './messages.ts'

/** One run in the history: the user's prompt and what followed. Trimmed only as a whole, so pairs stay together. */
export interface Turn {
  readonly messages: readonly Message[]
  /** Characters of text. */
  readonly size: number
  /** Characters of images and files. */
  readonly fileSize: number
  /** The run that said it; not known of what came in a bundle. */
  readonly runId?: string
  /** Whose reasoning is in it; not known of turns without any. */
  readonly model?: string
}

/** Who added a turn. */
export type TurnOrigin = Pick<Turn, 'runId' | 'model'>

/** A turn as a bundle has it. */
export type RestoredTurn = Pick<Turn, 'messages' | 'runId' | 'model'>

export interface HistoryLimits {
  readonly sessions: number
  /** Characters of one session; about 100,000 tokens. */
  readonly sessionChars: number
  readonly sessionMessages: number
  /** Characters of one session's images and files: what a run may bring, and as much of tools or earlier runs. */
  readonly sessionFileChars: number
  /** Characters of all sessions of this process. */
  readonly totalChars: number
}
const defaults: HistoryLimits = {
  sessions: 10_000,
  sessionChars: 400_000,
  sessionMessages: 400,
  sessionFileChars: 2 * maxAttachmentChars,
  totalChars: 128_000_000,
}

/** The conversations of this process. Bounded: the oldest turns of a session go first, then the least recently used sessions. */
export interface History {
  turns(sessionId: string): readonly Turn[] | undefined
  append(sessionId: string, messages: readonly Message[], origin?: TurnOrigin): void
  /** Takes back what a former attempt of this run has left: the run is about to say it again. */
  withdraw(sessionId: string, runId: string): void
  replace(sessionId: string, turns: readonly RestoredTurn[]): void
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
    const kept = withinFiles(newest(turns, limits), limits)
    const size = kept.reduce((sum, turn) => sum + turn.size + turn.fileSize, 0)
    sessions.set(sessionId, { turns: kept, size })
    total += size
    for (const oldest of sessions.keys()) {
      if (sessions.size <= limits.sessions && total <= limits.totalChars) break
      remove(oldest)
    }
  }
  const turnOf = (messages: readonly Message[], origin: TurnOrigin = {}): Turn =>
    fit(withoutReasoning(repaired(messages), 'signed'), limits.sessionChars, origin)
  return {
    turns: (sessionId) => sessions.get(sessionId)?.turns,
    append(sessionId, messages, origin) {
      store(sessionId, [...(sessions.get(sessionId)?.turns ?? []), turnOf(messages, origin)])
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
        turns.map(({ messages, ...origin }) => turnOf(messages, origin)),
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

/** Images and files of old turns give way to those of newer ones. */
function withinFiles(turns: readonly Turn[], { sessionFileChars }: HistoryLimits): readonly Turn[] {
  if (turns.reduce((sum, { fileSize }) => sum + fileSize, 0) <= sessionFileChars) return turns
  let size = 0
  return turns
    .toReversed()
    .map((turn) => {
      size += turn.fileSize
      if (turn.fileSize === 0 || size <= sessionFileChars) return turn
      return measured(withoutFiles(turn.messages), turn)
    })
    .toReversed()
}

const total = (messages: readonly Message[]): number => messages.reduce((sum, message) => sum + sizeOf(message), 0)

const measured = (messages: readonly Message[], { runId, model }: TurnOrigin): Turn => ({
  messages,
  size: total(messages),
  fileSize: messages.reduce((sum, message) => sum + fileSizeOf(message), 0),
  ...(runId === undefined ? {} : { runId }),
  ...(model === undefined ? {} : { model }),
})

/** A turn larger than a whole session may be keeps its question and its last answer, each cut to half of the room. */
function fit(messages: readonly Message[], limit: number, origin: TurnOrigin): Turn {
  const whole = measured(messages, origin)
  if (whole.size <= limit) return whole
  const question = messages.find((message) => message.role === 'user')
  const answer = messages.findLast((message) => message.role === 'assistant')
  return measured([...cut('user', question, limit >> 1), ...cut('assistant', answer, limit >> 1)], origin)
}

/** The texts of a message in this many characters; of a question the prompt itself, which is the last, before its files. */
function cut(role: 'user' | 'assistant', message: Message | undefined, chars: number): Message[] {
  const texts = (message?.content ?? []).flatMap((part) => (part.type === 'text' ? [part.text] : []))
  const prompt = (role === 'user' ? (texts.pop() ?? '') : '').slice(0, chars)
  const rest = texts.join('').slice(0, chars - prompt.length)
  const content = [rest, prompt].filter((text) => text !== '').map(textPart)
  return content.length === 0 ? [] : [{ role, content }]
}
