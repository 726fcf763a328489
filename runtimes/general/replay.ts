import type { Replay } from '#contracts/replay'
import { type PendingCall, replayedCall } from './calls.ts'
import type { OpenTurn } from './messages.ts'

/** What a former attempt leaves this one to do. */
export interface Replayed {
  /** Model calls that are finished. */
  readonly steps: number
  /** What the run has said in them. */
  readonly answer: string
  /** Calls of the last step that have no result: they are executed, maybe once more. */
  readonly open: readonly PendingCall[]
}

/** The texts of two steps are paragraphs of one answer. */
export const paragraph = '\n\n'

/** Fills the turn with what its log says. A step is text, then calls, then their results. */
export function replayInto(turn: OpenTurn, replay: Replay): Replayed {
  let steps = 0
  let answer = ''
  let asked: PendingCall[] = []
  let open: PendingCall[] = []
  const say = (): void => {
    if (asked.length === 0) return
    steps++
    turn.says(asked.map(({ part }) => part))
    open = asked
    asked = []
  }
  for (const event of replay) {
    if (event.type === 'assistant') {
      say()
      const { text } = event
      const begins = answer !== '' && turn.text === '' && text.startsWith(paragraph)
      turn.text += begins ? text.slice(paragraph.length) : text
      answer += text
    } else if (event.type === 'tool_call') {
      asked.push(replayedCall(event.id, event.name, event.arguments))
    } else {
      say()
      const index = open.findIndex(({ part }) => part.toolCallId === event.id && part.toolName === event.name)
      if (index < 0) continue
      turn.hears(open[index]!.part, event.ok, event.content)
      open = open.toSpliced(index, 1)
    }
  }
  say()
  return { steps, answer, open }
}
