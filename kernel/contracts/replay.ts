import { type Static, Type } from '@sinclair/typebox'
import { Attachment } from './prompt.ts'
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
  /** 1 for the first one, which is also meant when it is left out. */
  attempt: Type.Optional(Type.Integer({ minimum: 1 })),
  /** Absent in the first attempt. */
  replay: Type.Optional(Replay),
}

export const turnsContentType = 'application/vnd.agent-orc.turns+json'
export const Turns = Type.Object({
  turns: Type.Array(
    Type.Object({
      runId: Type.String(),
      prompt: Type.String(),
      attachments: Type.Optional(Type.Array(Attachment)),
      metadata: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
      model: Type.Optional(Type.String()),
      replay: Replay,
      error: Type.Optional(Type.Literal(true)),
    }),
  ),
})
export type Turns = Static<typeof Turns>
