import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'

/** The most memories that are put into a first message. */
const mostInjected = 20

/** The field `memory` of a profile. Absent: nothing is put into messages or taken from them, and the tools have the scope `user`. */
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

/** Memories in messages of models. Never rejects for its own sake: without them a conversation begins all the same. */
export interface Recall {
  /** Chooses what the first message is to have, and remembers it by the run; '' for nothing. The same for a run that is tried again. */
  choose(message: FirstMessage): Promise<string>
  /** What was put before the messages of runs, by run, for a conversation that is restored. */
  chosen(tenantId: string, runIds: readonly string[]): Promise<ReadonlyMap<string, string>>
}
export const Recall = capability<Recall>('conductor.recall')

/** What was recalled stands before a message between these; whoever reads messages leaves it out by them. */
export const recalledBegin = '<recalled_memories>'
export const recalledEnd = '</recalled_memories>'
