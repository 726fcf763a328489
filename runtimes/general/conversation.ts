import { maxAttachmentChars } from '#contracts/prompt'
import { fileSizeOf, type Message, repaired, sizeOf, textPart, withoutFiles, withoutReasoning } from './messages.ts'

// The history of a session, which is bounded by dropping the oldest turns.

/** One run in the history: the user's prompt and everything after it. It is dropped only as a whole, so that calls and results stay paired. */
export interface Turn {
  readonly messages: readonly Message[]
  /** Characters of text. */
  readonly size: number
  /** Characters of images and files. */
  readonly fileSize: number
  /** The run that wrote the turn. Unknown for a turn from a bundle. */
  readonly runId?: string
  /** The model that wrote the reasoning in the turn. Unknown for turns without reasoning. */
  readonly model?: string
}

/** The run and model that added a turn. */
type TurnOrigin = Pick<Turn, 'runId' | 'model'>

/** A turn in the form of a bundle. */
export type RestoredTurn = Pick<Turn, 'messages' | 'runId' | 'model'>

export interface HistoryLimits {
  readonly sessions: number
  /** The most characters of one session, about 100,000 tokens. */
  readonly sessionChars: number
  readonly sessionMessages: number
  /** The most characters of one session's images and files: as many as a run may bring, and as many again for tools or earlier runs. */
  readonly sessionFileChars: number
  /** The most characters of all sessions of this process. */
  readonly totalChars: number
}
/** The most characters of images and files, of a session as of a run. */
export const mostFileChars = 2 * maxAttachmentChars
const defaults: HistoryLimits = {
  sessions: 10_000,
  sessionChars: 400_000,
  sessionMessages: 400,
  sessionFileChars: mostFileChars,
  totalChars: 128_000_000,
}

/** The run that added a turn, and the tenant of its session. */
type Author = TurnOrigin & { readonly tenantId?: string }

/**
 * The conversations of this process. Bounded: the oldest turns of a session are dropped first, then the least recently used sessions
 * of the tenant that holds the most. A dropped session is restored for its next run.
 */
export interface History {
  has(sessionId: string): boolean
  turns(sessionId: string): readonly Turn[] | undefined
  append(sessionId: string, messages: readonly Message[], author?: Author): void
  /** Removes the turn of an earlier attempt of this run, because this attempt writes the turn again. */
  withdraw(sessionId: string, runId: string): void
  replace(sessionId: string, turns: readonly RestoredTurn[]): void
  forget(sessionId: string): void
}

interface Session {
  readonly turns: readonly Turn[]
  readonly size: number
  readonly owner: Owner
}

/** What a tenant holds in this process. */
interface Owner {
  size: number
  /** A set keeps insertion order: re-inserting on use puts the least recently used session first. */
  readonly sessions: Set<string>
}

export function createHistory(limits: HistoryLimits = defaults): History {
  const sessions = new Map<string, Session>()
  const owners = new Map<string, Owner>()
  /** Owns restored sessions until one of their runs has ended here. */
  const nobody: Owner = { size: 0, sessions: new Set() }
  let total = 0
  const ownerOf = (tenantId: string): Owner => {
    const owner = owners.get(tenantId) ?? { size: 0, sessions: new Set() }
    owners.set(tenantId, owner)
    return owner
  }
  const remove = (sessionId: string): void => {
    const session = sessions.get(sessionId)
    if (!session) return
    sessions.delete(sessionId)
    session.owner.sessions.delete(sessionId)
    session.owner.size -= session.size
    total -= session.size
  }
  /** The tenant that holds the most gives up sessions first, so that it cannot displace the sessions of others. */
  const makeRoom = (): void => {
    while (sessions.size > limits.sessions || total > limits.totalChars) {
      const weight = ({ size, sessions: held }: Owner): number => (total > limits.totalChars ? size : held.size)
      let most = nobody
      for (const [tenantId, owner] of owners) {
        if (owner.sessions.size === 0) owners.delete(tenantId)
        else if (weight(owner) > weight(most)) most = owner
      }
      const [oldest] = most.sessions
      remove(oldest!)
    }
  }
  const store = (sessionId: string, turns: readonly Turn[], owner: Owner): void => {
    remove(sessionId)
    const kept = withinFiles(newest(turns, limits), limits)
    const size = kept.reduce((sum, turn) => sum + turn.size + turn.fileSize, 0)
    sessions.set(sessionId, { turns: kept, size, owner })
    owner.sessions.add(sessionId)
    owner.size += size
    total += size
    makeRoom()
  }
  const turnOf = (messages: readonly Message[], origin: TurnOrigin = {}): Turn =>
    fit(withoutReasoning(repaired(messages), 'signed'), limits.sessionChars, origin)
  return {
    has: (sessionId) => sessions.has(sessionId),
    turns: (sessionId) => sessions.get(sessionId)?.turns,
    append(sessionId, messages, { tenantId, ...origin } = {}) {
      const turns = sessions.get(sessionId)?.turns ?? []
      store(sessionId, [...turns, turnOf(messages, origin)], tenantId === undefined ? nobody : ownerOf(tenantId))
    },
    withdraw(sessionId, runId) {
      const session = sessions.get(sessionId)
      if (session?.turns.at(-1)?.runId !== runId) return
      if (session.turns.length > 1) store(sessionId, session.turns.slice(0, -1), session.owner)
      else remove(sessionId)
    },
    replace(sessionId, turns) {
      store(
        sessionId,
        turns.map(({ messages, ...origin }) => turnOf(messages, origin)),
        sessions.get(sessionId)?.owner ?? nobody,
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
    // The newest turn always stays, because the next question may refer to it.
    if (from < turns.length && (size > limits.sessionChars || messages > limits.sessionMessages)) break
    from--
  }
  return turns.slice(from)
}

/** Drops images and files of old turns to make room for newer ones. */
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

export const fileSizeOfAll = (messages: readonly Message[]): number =>
  messages.reduce((sum, message) => sum + fileSizeOf(message), 0)
const total = (messages: readonly Message[]): number => messages.reduce((sum, message) => sum + sizeOf(message), 0)

const measured = (messages: readonly Message[], { runId, model }: TurnOrigin): Turn => ({
  messages,
  size: total(messages),
  fileSize: fileSizeOfAll(messages),
  ...(runId === undefined ? {} : { runId }),
  ...(model === undefined ? {} : { model }),
})

/** Cuts a turn that exceeds a whole session's limit to its question and last answer, each to half of the room. */
function fit(messages: readonly Message[], limit: number, origin: TurnOrigin): Turn {
  const whole = measured(messages, origin)
  if (whole.size <= limit) return whole
  const question = messages.find((message) => message.role === 'user')
  const answer = messages.findLast((message) => message.role === 'assistant')
  return measured([...cut('user', question, limit >> 1), ...cut('assistant', answer, limit >> 1)], origin)
}

/** The texts of a message, cut to this many characters in total. In a question the prompt, which is the last text, takes precedence over its files. */
function cut(role: 'user' | 'assistant', message: Message | undefined, chars: number): Message[] {
  const texts = (message?.content ?? []).flatMap((part) => (part.type === 'text' ? [part.text] : []))
  const prompt = (role === 'user' ? (texts.pop() ?? '') : '').slice(0, chars)
  const rest = texts.join('').slice(0, chars - prompt.length)
  const content = [rest, prompt].filter((text) => text !== '').map(textPart)
  return content.length === 0 ? [] : [{ role, content }]
}
