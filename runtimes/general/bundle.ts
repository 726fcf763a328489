import { Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { withoutCycles } from '#contracts/circular'
import { ObjectLink } from '#contracts/linked-objects'
import { Turns, turnsContentType } from '#contracts/replay'
import type { StateBundle } from '#contracts/runtime'
import type { RestoredTurn, Turn } from './conversation.ts'
import { type Message, OpenTurn } from './messages.ts'
import { replayInto } from './calls.ts'
import { generalErrors } from './errors.ts'

const closed = { additionalProperties: false }
const text = Type.Object({ type: Type.Literal('text'), text: Type.String() }, closed)
const providerOptions = Type.Record(Type.String(), Type.Record(Type.String(), Type.Unknown()))
const call = Type.Object(
  {
    type: Type.Literal('tool-call'),
    toolCallId: Type.String(),
    toolName: Type.String(),
    input: Type.Record(Type.String(), Type.Unknown()),
    providerOptions: Type.Optional(providerOptions),
  },
  closed,
)
const output = Type.Object(
  { type: Type.Union([Type.Literal('text'), Type.Literal('error-text')]), value: Type.String() },
  closed,
)
const result = Type.Object(
  { type: Type.Literal('tool-result'), toolCallId: Type.String(), toolName: Type.String(), output },
  closed,
)
const tool = Type.Object({ role: Type.Literal('tool'), content: Type.Array(result) }, closed)
const message = Type.Union([
  Type.Object({ role: Type.Literal('user'), content: Type.Array(text) }, closed),
  Type.Object({ role: Type.Literal('assistant'), content: Type.Array(Type.Union([text, call])) }, closed),
  tool,
])

/** Parts that version 1 lacks. Only signed reasoning is kept. */
const reasoning = Type.Object({ type: Type.Literal('reasoning'), text: Type.String(), providerOptions }, closed)
const file = Type.Object(
  {
    type: Type.Literal('file'),
    mediaType: Type.String({ pattern: '^[a-z]+/[a-zA-Z0-9.+-]{1,100}$' }),
    filename: Type.Optional(Type.String({ maxLength: 255 })),
    data: Type.Union([
      Type.Object({ type: Type.Literal('data'), data: Type.String({ pattern: '^[A-Za-z0-9+/]+={0,2}$' }) }, closed),
      Type.Object({ type: Type.Literal('link'), link: ObjectLink }, closed),
    ]),
  },
  closed,
)
const message2 = Type.Union([
  Type.Object({ role: Type.Literal('user'), content: Type.Array(Type.Union([text, file])) }, closed),
  Type.Object({ role: Type.Literal('assistant'), content: Type.Array(Type.Union([text, reasoning, call])) }, closed),
  tool,
])
const turn2 = Type.Object(
  { model: Type.Optional(Type.String({ maxLength: 200 })), messages: Type.Array(message2) },
  closed,
)

/** The state of a session as JSON. A different layout needs a different `version`. */
const runtime = Type.Literal('general')
const Bundle1 = Type.Object({ runtime, version: Type.Literal(1), turns: Type.Array(Type.Array(message)) }, closed)
const Bundle2 = Type.Object({ runtime, version: Type.Literal(2), turns: Type.Array(turn2) }, closed)

/** Writes version 1 whenever it can hold everything, because a sidecar of the previous release reads it. */
export function encodeBundle(turns: readonly Turn[]): Uint8Array {
  const bundle = turns.some(({ messages }) => messages.some(needsVersion2))
    ? { runtime: 'general', version: 2, turns: turns.map(({ model, messages }) => ({ model, messages })) }
    : { runtime: 'general', version: 1, turns: turns.map(({ messages }) => messages) }
  return Buffer.from(JSON.stringify(bundle), 'utf8')
}

const needsVersion2 = ({ role, content }: Message): boolean =>
  role !== 'tool' && content.some(({ type }) => type === 'file' || type === 'reasoning')

/** The turns of a bundle: one of this runtime, or one that was made from stored runs. Throws AppError 400 `invalid_state` for anything else. */
export function decodeState({ bytes, contentType }: Pick<StateBundle, 'bytes' | 'contentType'>): RestoredTurn[] {
  const [type = ''] = contentType.split(';')
  const value = jsonOf(bytes)
  return type.trim().toLowerCase() === turnsContentType ? turnsOfRuns(value) : turnsOfBundle(value)
}

function jsonOf(bytes: Uint8Array): unknown {
  try {
    // Also cuts values that are nested too deeply to be written again.
    return withoutCycles(JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes)))
  } catch (cause) {
    throw generalErrors.invalidState({ cause })
  }
}

function turnsOfBundle(value: unknown): RestoredTurn[] {
  if (Value.Check(Bundle1, value)) return value.turns.map((messages) => ({ messages: messages as Message[] }))
  if (Value.Check(Bundle2, value)) return value.turns as RestoredTurn[]
  throw generalErrors.invalidState()
}

/**
 * The turns that these runs would have left in this process. What their events do not show is lost: reasoning and other vendor signatures, images
 * that tools returned, and whether a tool was called through the catalogue.
 */
function turnsOfRuns(value: unknown): RestoredTurn[] {
  if (!Value.Check(Turns, value)) throw generalErrors.invalidState()
  return value.turns.flatMap(({ runId, model, replay, ...run }) => {
    const turn = new OpenTurn(run)
    replayInto(turn, replay)
    const messages = turn.end()
    return messages ? [{ messages, runId, ...(model === undefined ? {} : { model }) }] : []
  })
}
