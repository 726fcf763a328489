import { type TSchema, Type } from '@sinclair/typebox'

// Response schemas of what is no JSON document, and of failures: they are there for the OpenAPI document.

/** 204. */
export const NoContent = Type.Unsafe<undefined>({ type: 'null', description: 'Done.' })

const media =
  (type: string) =>
  (description: string, schema: TSchema = Type.String()) => ({
    description,
    content: { [type]: { schema } },
  })

/** Server-Sent Events, answered with `sse`. */
export const eventStream = media('text/event-stream')
/** JSON lines, answered with `ndjson`. */
export const jsonLines = media('application/x-ndjson')
/** Text for people and programs that read lines. */
export const plainText = media('text/plain')

/** One answer in the form that the caller's `Accept` asks for: `negotiated('…', { 'application/json': A, … })`. */
export const negotiated = (description: string, forms: Readonly<Record<string, TSchema>>) => ({
  description,
  content: Object.fromEntries(Object.entries(forms).map(([type, schema]) => [type, { schema }])),
})

/** A status of 400 or more that deserves words of its own; its body is that of every error. */
export const failure = (description: string) =>
  Type.Unsafe<never>({ type: 'object', additionalProperties: true, description })
