import { errorTable } from './errors.ts'

const idRule = '1-128 letters, digits, underscores and hyphens.'

/** Why a run cannot start or was not found. A gateway answers the same for a conversation. */
export const runErrors = errorTable('runs', {
  invalidRunId: { code: 'invalid run id', status: 400, message: `A run id is ${idRule}` },
  invalidSessionId: { code: 'invalid session id', status: 400, message: `A session id is ${idRule}` },
  /** The specification shows the name as part of the string. Specification 4.8. */
  unknownProfile: {
    named: true,
    status: 400,
    message: 'No profile has this name; see GET /api/profiles.',
  },
  invalidAttachment: {
    status: 400,
    about: 'The data of an attachment is not base64, or it has neither or both of `data` and `upload`.',
  },
  attachmentsTooLarge: { status: 413, message: 'The attachments of a run may have at most 4 MiB together.' },
  invalidResponseFormat: {
    status: 400,
    about:
      'The schema of `responseFormat` is invalid, too large, or cannot be compiled; the sentence says what is wrong.',
  },
  notFound: { status: 404, about: 'The run does not exist; or the session does not exist or was shut down.' },
  conflict: { status: 409, message: 'A run with this id exists.' },
  sessionBusy: {
    status: 409,
    retry: 'later',
    message: 'The session is executing another run.',
    about: 'The session is executing another run; see `whenBusy`.',
  },
  sessionProfileMismatch: { status: 409, message: 'The session was created with another profile.' },
  admissionStale: {
    status: 409,
    message: 'The key or the agent of this chat has changed since it was read; read it again.',
  },
  tooManySchemas: {
    status: 429,
    retry: 'later',
    message: 'Too many schemas of this tenant wait to be checked; try again later.',
  },
  queueFull: {
    status: 429,
    retry: 'later',
    message: 'Too many runs wait for the session; try again later.',
  },
  webhooksUnavailable: {
    status: 503,
    message: 'This installation has no webhooks; start the run without one.',
  },
  hydrationFailed: {
    status: 503,
    retry: 'as-said',
    message: 'The session could not be restored; try again.',
    about: 'The session could not be restored.',
  },
  conversationNotFound: {
    status: 404,
    message: 'This agent has no such conversation; leave conversation_id out to begin one.',
  },
  conversationBusy: {
    status: 409,
    retry: 'later',
    message: 'A run of this conversation is running; wait until it has ended.',
  },
  conversationEnded: {
    status: 409,
    message: 'This conversation was closed and cannot continue; leave conversation_id out to begin a new one.',
  },
})

/** Failures between a conductor and its runners. */
export const fleetErrors = errorTable('fleet', {
  noRunner: { status: 503, retry: true, about: 'No runner can execute the run; the sentence says what is missing.' },
  /** Retryable only when the request certainly did not arrive. */
  runnerUnreachable: {
    status: 503,
    retry: 'as-said',
    message: 'The runner cannot be reached; try again.',
    about: 'The runner cannot be reached.',
  },
  runnerFailed: { status: 502, message: 'The runner answered with an error.' },
  notFound: { status: 404, message: 'No runner of this conductor has this hash.' },
  rateLimited: {
    status: 429,
    retry: true,
    message: 'Too many requests for the topology; wait as Retry-After says.',
  },
})
