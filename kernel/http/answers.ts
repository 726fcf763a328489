import { type TSchema, Type } from '@sinclair/typebox'
import { shownCode, told } from '../contracts/error-docs.ts'
import type { Listed } from '../contracts/errors.ts'

// Response schemas for answers that are no JSON documents, and for failures. The OpenAPI document shows them.

/** 204 without a body. */
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

/** An answer in the form that the caller's `Accept` requests: `negotiated('…', { 'application/json': A, … })`. */
export const negotiated = (description: string, forms: Readonly<Record<string, TSchema>>) => ({
  description,
  content: Object.fromEntries(Object.entries(forms).map(([type, schema]) => [type, { schema }])),
})

/**
 * The known failures of a route, by status: `response: { 200: Run, ...failures(runErrors.queueFull) }`. Their body is that of every error. The type
 * is empty, because failures are thrown and never returned.
 */
export const failures = (...errors: readonly Listed[]): object =>
  Object.fromEntries(
    [...Map.groupBy(errors, ({ row }) => row.status)].map(([status, some]) => {
      const description = some.map(told).join(' ')
      return [
        status,
        { type: 'object', additionalProperties: true, description, 'x-errors': some.map(({ row }) => shownCode(row)) },
      ]
    }),
  )
