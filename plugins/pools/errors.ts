import { AppError, conflict, notFound } from '#kernel'

export const unknownPool = notFound
export const nameTaken = (name: string) => conflict({ message: `There already is a pool named '${name}'.` })
export const poolInUse = (profiles: readonly string[]) =>
  new AppError('pool_in_use', 409, {
    message: `Profiles name this pool (${profiles.join(', ')}); give them another one or none first.`,
    detail: { profiles },
  })
