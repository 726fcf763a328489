import { AppError, forbidden, notFound } from '#kernel'

export const unknownKey = notFound
export const roleTooHigh = (role: string) =>
  forbidden({ message: `A key may grant at most its own role, not '${role}'.` })
export const unknownTenant = (id: string) =>
  new AppError('unknown_tenant', 404, { message: `There is no tenant '${id}'.` })
export const expiryPassed = () => {
  const message = 'must be a time in the future'
  const detail = { issues: [{ path: 'body/expiresAt', message }] }
  return new AppError('invalid_request', 400, { message: `body/expiresAt ${message}`, detail })
}
