import type { ErrorRow, ErrorTable, Listed } from './errors.ts'
import { httpErrors } from './http-errors.ts'

// How OpenAPI documents and docs/errors.md show the rows of tables.

/** The tables of these plugins, each once, beginning with the errors that any route may answer. */
export function tablesOf(plugins: readonly { readonly errors?: ErrorTable | readonly ErrorTable[] }[]): ErrorTable[] {
  return [...new Set([httpErrors, ...plugins.flatMap(({ errors = [] }) => [errors].flat())])]
}

/** The code as documents show it, e.g. `unknown_profile: NAME`. */
export const shownCode = ({ code, named }: ErrorRow): string => (named ? `${code}: NAME` : code)

/**
 * An entry of `x-errors`, for client generators. `retryable` is `as-said` if the answer says so, and `later` if a client should not retry by
 * itself.
 */
export const listed = ({ row }: Listed): object => ({
  code: shownCode(row),
  status: row.status,
  message: row.about,
  retryable: row.retryable,
  subsystem: row.subsystem,
})

const retries: Readonly<Record<`${ErrorRow['retryable']}`, string>> = {
  true: ' A retry may help.',
  later: ' A retry may help later.',
  'as-said': ' A retry may help if `retryable` is true.',
  false: '',
}

/** One error in a sentence or two. */
export function told({ row }: Listed): string {
  return `\`${shownCode(row)}\`: ${row.about}${retries[`${row.retryable}`]}`
}

/** The schema of every error body. */
export const problemSchema = {
  type: 'object',
  required: ['error', 'request_id'],
  properties: {
    error: { type: 'string', description: 'Stable code to match on.' },
    message: { type: 'string', description: 'A sentence for people.' },
    request_id: { type: 'string', description: 'Names this request in the logs.' },
    retryable: { type: 'boolean', description: 'True when the same request may succeed later.' },
    issues: {
      type: 'array',
      description: 'With `invalid_request`: what is wrong, and where.',
      items: {
        type: 'object',
        required: ['path', 'message'],
        properties: { path: { type: 'string' }, message: { type: 'string' } },
      },
    },
  },
  additionalProperties: true,
}
