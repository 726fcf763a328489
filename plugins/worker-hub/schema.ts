import { Type } from '@sinclair/typebox'
import { failure } from '#kernel'

export const tags = ['workers']
export const SessionParams = Type.Object({ id: Type.String({ maxLength: 128, description: 'Of the session.' }) })

/** What any callback of a worker may answer. */
export const refusals = {
  401: failure(
    '`invalid or missing worker token: …`: missing, malformed, expired, other session, other tenant or superseded.',
  ),
  503: failure('`dynamic_workers_unavailable`: this runner starts no sandbox workers.'),
}
