import { AppError, appError, conflict, notFound } from '#kernel'

export const unknownProfile = notFound
export const nameTaken = (name: string) => conflict({ message: `There already is a profile named '${name}'.` })
export const idTaken = (id: string) => conflict({ message: `Another profile has the id '${id}'.` })
export const idChanged = () => conflict({ message: 'The id of a profile cannot change; leave it out.' })
export const nameMismatch = appError('invalid_request', 400, 'The name in the body is not the one in the path.')
export const unstorableText = appError(
  'invalid_request',
  400,
  'The profile holds text that cannot be stored: a NUL character or half of a surrogate pair.',
)
export const unknownSkill = (name: string) =>
  new AppError(`unknown_skill: ${name}`, 400, { message: 'This installation has no skill of that name.' })
