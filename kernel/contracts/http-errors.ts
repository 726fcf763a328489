import { type AppError, errorTable } from './errors.ts'

/** What any route may answer. A plugin that has more to say gives these a sentence of its own. */
export const httpErrors = errorTable('http', {
  invalidRequest: {
    status: 400,
    message: 'The request is invalid.',
    about: 'The request is not what the route takes; `issues` says what is wrong, and where.',
  },
  unauthorized: { status: 401, message: 'The request carries no valid credentials.' },
  forbidden: { status: 403, message: 'Your role does not allow this.' },
  originNotAllowed: {
    status: 403,
    message:
      'Web pages of this origin may not ask this server; whoever runs it can add the origin to `origins` of its listener.',
  },
  notFound: { status: 404, message: 'There is nothing of this name or id.' },
  requestTimeout: { status: 408, retry: 'later', message: 'The request did not arrive in time.' },
  conflict: { status: 409, about: 'What is there already does not go with it; the sentence says what.' },
  bodyTooLarge: { status: 413, message: 'The request body is larger than this route accepts.' },
  unsupportedMediaType: { status: 415, message: 'Send the body as application/json.' },
  unknownHost: {
    status: 421,
    message:
      'This server is not asked under this host name; whoever runs it can add the name to `hosts` of its listener.',
  },
  headersTooLarge: { status: 431, message: 'The request headers are larger than 16 KiB.' },
  internal: { status: 500, message: 'Something went wrong here.', about: 'A bug; the log has it under `request_id`.' },
  unavailable: {
    status: 503,
    retry: 'as-said',
    about: 'Something that the answer needs is away, or this server is stopping.',
  },
})

export const { invalidRequest, unauthorized, forbidden, notFound, conflict, bodyTooLarge, unavailable } = httpErrors

/** One field that a schema cannot check, e.g. `invalidField('body/slug', 'cannot be changed')`. */
export const invalidField = (path: string, message: string): AppError =>
  invalidRequest({ message: `${path} ${message}`, detail: { issues: [{ path, message }] } })
