import { type Static, Type } from '@sinclair/typebox'
import { CarriedAttachment } from './prompt.ts'
import { AssistantEvent, ToolCallEvent, ToolResultEvent } from './run-event.ts'

/**
 * What earlier attempts of a run finished, in the order of its log: the text of each finished step as one `assistant` event, the tool calls after
 * it, and those of their results that are known. The text of an interrupted step is left out.
 */
export const Replay = Type.Array(Type.Union([AssistantEvent, ToolCallEvent, ToolResultEvent]))
export type Replay = Static<typeof Replay>

/** More than any model accepts as history. A run that has finished more than this is not retried. */
export const maxReplayBytes = 16 * 1024 * 1024

/** Fields of a retried run, on its way to the executor. */
export const attemptFields = {
  /** The number of the attempt, counted from 1. Absent means 1. */
  attempt: Type.Optional(Type.Integer({ minimum: 1 })),
  /** The finished parts of earlier attempts; absent in the first one. */
  replay: Type.Optional(Replay),
}

/** The content type of a state bundle that was made from a conversation's stored runs, not by the runtime that held it. */
export const turnsContentType = 'application/vnd.agent-orc.turns+json'

const open = { additionalProperties: true }

/** One ended run of a conversation: its prompt, and what it did according to its log. */
export const RunTurn = Type.Object(
  {
    runId: Type.String(),
    prompt: Type.String(),
    attachments: Type.Optional(Type.Array(CarriedAttachment)),
    metadata: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
    /** The model as the profile named it. */
    model: Type.Optional(Type.String({ maxLength: 200 })),
    /**
     * The events of the whole run. The text after its last tool result is its answer, or the beginning of the answer if the run was interrupted.
     * The text of a refused answer (`output_invalid`) is left out; text before a tool call stays.
     */
    replay: Replay,
    /** True when the run did not end as `ok`. */
    error: Type.Optional(Type.Literal(true)),
  },
  open,
)
export type RunTurn = Static<typeof RunTurn>

/**
 * A conversation as its runs left it, oldest first. It restores runtimes that keep nothing but messages. UTF-8 JSON of `turnsContentType`, limited
 * by its maker, who keeps the newest turns.
 */
export const Turns = Type.Object({ turns: Type.Array(RunTurn) }, open)
export type Turns = Static<typeof Turns>
