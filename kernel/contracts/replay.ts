import { type Static, Type } from '@sinclair/typebox'
import { CarriedAttachment } from './prompt.ts'
import { AssistantEvent, ToolCallEvent, ToolResultEvent } from './run-event.ts'

/**
 * What the former attempts of a run finished, in the order of its log: the text of each finished step as one `assistant`
 * event, the tool calls that followed it, and those of their results that are known. Text of a step that was cut is left out.
 */
export const Replay = Type.Array(Type.Union([AssistantEvent, ToolCallEvent, ToolResultEvent]))
export type Replay = Static<typeof Replay>

/** More than any model takes as history. A run that has finished more than this is not tried again. */
export const maxReplayBytes = 16 * 1024 * 1024

/** Fields of a run that is tried again, on its way to whoever executes it. */
export const attemptFields = {
  /** The number of the attempt, from 1; absent means 1. */
  attempt: Type.Optional(Type.Integer({ minimum: 1 })),
  /** The finished parts of earlier attempts; absent in the first one. */
  replay: Type.Optional(Replay),
}

/** The content type of a state bundle that is made of a conversation's stored runs, and not by the runtime that held it. */
export const turnsContentType = 'application/vnd.agent-orc.turns+json'

const open = { additionalProperties: true }

/** One ended run of a conversation: its prompt, and what its log says that it did. */
export const RunTurn = Type.Object(
  {
    runId: Type.String(),
    prompt: Type.String(),
    attachments: Type.Optional(Type.Array(CarriedAttachment)),
    metadata: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
    /** The model as the profile named it. */
    model: Type.Optional(Type.String({ maxLength: 200 })),
    /**
     * The events of the whole run, with the text after its last tool result, which is its answer, or the beginning of it when
     * the run was cut. The text of an answer that was refused (`output_invalid`) is left out; text before a tool call stays.
     */
    replay: Replay,
    /** True when the run did not end as `ok`. */
    error: Type.Optional(Type.Literal(true)),
  },
  open,
)
export type RunTurn = Static<typeof RunTurn>

/**
 * A conversation as its runs left it, oldest first: what a runtime that keeps nothing but messages is restored from. UTF-8 JSON
 * of `turnsContentType`, bounded by whoever makes it: the newest turns are those that count.
 */
export const Turns = Type.Object({ turns: Type.Array(RunTurn) }, open)
export type Turns = Static<typeof Turns>
