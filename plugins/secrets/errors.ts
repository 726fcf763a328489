import { conflict, invalidField, invalidRequest, notFound } from '#kernel'

export const unknownSecret = () => notFound({ message: 'No secret has this name; create it with POST /api/secrets.' })
export const unknownVersion = () =>
  notFound({
    message: 'The secret does not have this version, or not any more; GET /api/secrets/{name}/versions lists all.',
  })
export const nameTaken = (name: string) =>
  conflict({ message: `There is a secret '${name}' already; PUT /api/secrets/${name} replaces its value.` })
export const nameMismatch = () => invalidRequest({ message: 'The name in the body is not the one in the path.' })
export const notInFuture = () => invalidField('body/expiresAt', 'must be a time in the future')
export const unstorable = () =>
  invalidField('body/value', 'must be whole Unicode text: half of a surrogate pair is in it')
