import { Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { withoutCycles } from '#contracts/circular'
import { corruptState } from './errors.ts'
import type { Turn } from './history.ts'
import type { Message } from './messages.ts'

const text = Type.Object({ type: Type.Literal('text'), text: Type.String() }, { additionalProperties: false })
const providerOptions = Type.Optional(Type.Record(Type.String(), Type.Record(Type.String(), Type.Unknown())))
const call = Type.Object(
  {
    type: Type.Literal('tool-call'),
    toolCallId: Type.String(),
    toolName: Type.String(),
    input: Type.Record(Type.String(), Type.Unknown()),
    providerOptions,
  },
  { additionalProperties: false },
)
const output = Type.Object(
  { type: Type.Union([Type.Literal('text'), Type.Literal('error-text')]), value: Type.String() },
  { additionalProperties: false },
)
const result = Type.Object(
  { type: Type.Literal('tool-result'), toolCallId: Type.String(), toolName: Type.String(), output },
  { additionalProperties: false },
)
const message = Type.Union([
  Type.Object({ role: Type.Literal('user'), content: Type.Array(text) }, { additionalProperties: false }),
  Type.Object(
    { role: Type.Literal('assistant'), content: Type.Array(Type.Union([text, call])) },
    { additionalProperties: false },
  ),
  Type.Object({ role: Type.Literal('tool'), content: Type.Array(result) }, { additionalProperties: false }),
])

/** The state of a session as JSON. Another layout gets another `version`. */
const Bundle = Type.Object(
  { runtime: Type.Literal('general'), version: Type.Literal(1), turns: Type.Array(Type.Array(message)) },
  { additionalProperties: false },
)

export const encodeBundle = (turns: readonly Turn[]): Uint8Array =>
  Buffer.from(JSON.stringify({ runtime: 'general', version: 1, turns: turns.map((turn) => turn.messages) }), 'utf8')

/** The turns of a bundle. Throws AppError 400 `invalid_state` for anything that `encodeBundle` did not write. */
export function decodeBundle(bytes: Uint8Array): Message[][] {
  let value: unknown
  try {
    // Also cuts what nests too deep to be written again.
    value = withoutCycles(JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes)))
  } catch (cause) {
    throw corruptState({ cause })
  }
  if (!Value.Check(Bundle, value)) throw corruptState()
  return value.turns as Message[][]
}
