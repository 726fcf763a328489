import { type AppError, errorTable } from './errors.ts'

/** The errors that any route may answer. A plugin can give them a sentence of its own. */
export const httpErrors = errorTable('http', {
  invalidRequest: {
    status: 400,
    message: 'The request is invalid.',
    about: 'The request does not match what the route accepts; `issues` says what is wrong, and where.',
  },
  unauthorized: { status: 401, message: 'The request has no valid credentials.' },
  forbidden: { status: 403, message: 'Your role does not allow this.' },
  originNotAllowed: {
    status: 403,
    message:
      'Web pages of this origin may not call this server; its operator can add the origin to `origins` of its listener.',
  },
  notFound: { status: 404, message: 'Nothing has this name or id.' },
  requestTimeout: { status: 408, retry: 'later', message: 'The request did not arrive in time.' },
  conflict: { status: 409, about: 'The request conflicts with something that exists; the sentence says with what.' },
  bodyTooLarge: { status: 413, message: 'The request body is larger than this route accepts.' },
  unsupportedMediaType: { status: 415, message: 'Send the body as application/json.' },
  unknownHost: {
    status: 421,
    message: 'This server does not answer to this host name; its operator can add the name to `hosts` of its listener.',
  },
  headersTooLarge: { status: 431, message: 'The request headers are larger than 16 KiB.' },
  internal: {
    status: 500,
    message: 'Something went wrong here.',
    about: 'An unexpected error; the log has it under `request_id`.',
  },
  unavailable: {
    status: 503,
    retry: 'as-said',
    about: 'Something that the answer needs cannot be reached, or this server is stopping.',
  },
})

export const { invalidRequest, unauthorized, forbidden, notFound, conflict, bodyTooLarge, unavailable } = httpErrors

/** The error for one field that a schema cannot check, e.g. `invalidField('body/slug', 'cannot be changed')`. */
export const invalidField = (path: string, message: string): AppError =>
  invalidRequest({ message: `${path} ${message}`, detail: { issues: [{ path, message }] } })
