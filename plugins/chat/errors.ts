import { type AppError, errorTable, unauthorized } from '#kernel'

export const unreachable = 'The agent cannot be reached right now. Send the message again later.'

/** The errors of a published agent's clients, except the reasons why a conversation begins no run. */
export const chatErrors = errorTable('chat', {
  originNotAllowed: { status: 403, message: 'This agent may not be called from this origin.' },
  notPublished: { status: 404, message: 'This agent is not published.', about: 'The agent is disabled.' },
  notFound: {
    status: 404,
    message: 'Nothing has this name or id.',
    about: 'It does not exist, or it belongs to another agent.',
  },
  lost: { status: 410, about: 'The run was lost in a restart; send the message again.' },
  rateLimited: {
    status: 429,
    retry: true,
    message: 'This key has used up its requests of the last minute.',
    about: 'The key has used up its requests for this minute; see `Retry-After` and `RateLimit`.',
  },
  upstream: {
    status: 502,
    retry: 'as-said',
    about:
      'The agent failed or cannot be reached. With `public_run_id` and `conversation_id`, unless no run was started.',
  },
  unavailable: {
    status: 503,
    retry: true,
    message: unreachable,
    about: 'No run was started; or this server is stopping while the run continues: its answer can be fetched later.',
  },
  syncTimeout: {
    status: 504,
    message: 'The run takes longer than a synchronous call may; it goes on, and its answer can be fetched later.',
    about:
      'The run takes longer than the agent allows for a synchronous call; it continues. With `public_run_id` and `conversation_id`.',
  },
})

export const invalidKey = (): AppError =>
  unauthorized({
    message: 'Send a valid key of this agent as a bearer token.',
    headers: { 'www-authenticate': 'Bearer' },
  })
