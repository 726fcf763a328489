import { AppError, appError, conflict, notFound } from '#kernel'

export const unknownProfile = notFound
export const unknownKey = notFound
export const notPublished = appError('not_published', 404, 'This profile is not published.')
export const alreadyPublished = (name: string) =>
  conflict({ message: `The profile '${name}' is already published; change it with PATCH, or unpublish it first.` })
export const slugTaken = (slug: string) =>
  conflict({ message: `Another published agent has the slug '${slug}'; choose another one.` })

const invalid = (path: string, message: string) =>
  new AppError('invalid_request', 400, { message: `${path} ${message}`, detail: { issues: [{ path, message }] } })
export const slugFixed = () => invalid('body/slug', 'cannot be changed: unpublish and publish again')
export const badOrigin = (index: number, hint: string) => invalid(`body/allowedOrigins/${index}`, hint)
export const webhooksUnavailable = appError(
  'webhooks_unavailable',
  503,
  'This installation has no webhooks; publish without one.',
)
