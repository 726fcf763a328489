import { AppError, unavailable } from '#kernel'

export const notRecorded = (cause: unknown) =>
  unavailable({
    message: 'This write could not be put on record in the audit log, so it was not done; try again shortly.',
    retryable: true,
    cause,
  })
export const noSuchTime = (name: string) => {
  const message = 'must be a time that exists'
  const detail = { issues: [{ path: `querystring/${name}`, message }] }
  return new AppError('invalid_request', 400, { message: `querystring/${name} ${message}`, detail })
}
