import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'

/** The most memories that are put into a first message. */
const mostInjected = 20

/** The field `memory` of a profile. Absent: no memories are inserted or extracted, and the tools have the scope `user`. */
export const ProfileMemory = Type.Object(
  {
    inject: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: mostInjected,
        description: 'How many memories that match it are put before the first message of a conversation.',
      }),
    ),
    extract: Type.Optional(
      Type.Boolean({
        description:
          'Makes memories of what people say in conversations, some minutes after a run has ended: of end users, or of everybody with the scope `profile`.',
      }),
    ),
    scope: Type.Optional(
      Type.Union([Type.Literal('user'), Type.Literal('profile')], {
        description:
          '`user` (default): memories of the end user of the run, and memories without an end user. `profile`: all memories of the profile.',
      }),
    ),
  },
  { additionalProperties: false, description: 'How agents of this profile remember; see docs/memory.md.' },
)
export type ProfileMemory = Static<typeof ProfileMemory>

/** The first message of a conversation. */
export interface FirstMessage {
  readonly tenantId: string
  readonly runId: string
  readonly profile: { readonly name: string; readonly memory: ProfileMemory }
  readonly endUserId?: string | undefined
  readonly prompt: string
}

/** Inserts memories into messages for models. Its own failures never reject, because a conversation can begin without memories. */
export interface Recall {
  /** Chooses the memories for the first message, and remembers the choice by run, so that a retried run gets the same. Empty: none. */
  choose(message: FirstMessage): Promise<string>
  /** The texts that were put before the messages of runs, by run, for a conversation that is restored. */
  chosen(tenantId: string, runIds: readonly string[]): Promise<ReadonlyMap<string, string>>
}
export const Recall = capability<Recall>('conductor.recall')

/** Recalled memories stand before a message between these marks, by which readers of messages remove them. */
export const recalledBegin = '<recalled_memories>'
export const recalledEnd = '</recalled_memories>'
