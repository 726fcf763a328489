import { AppError, appError, conflict, notFound } from '#kernel'

export const unknownProfile = notFound
export const unknownVersion = notFound
export const nameTaken = (name: string) => conflict({ message: `There already is a profile named '${name}'.` })
export const idTaken = (id: string) => conflict({ message: `Another profile has the id '${id}'.` })
export const idChanged = () => conflict({ message: 'The id of a profile cannot change; leave it out.' })
export const tooManyProfiles = (most: number) =>
  conflict({ message: `Without a database a tenant has at most ${most} profiles; delete some first.` })
export const nameMismatch = appError('invalid_request', 400, 'The name in the body is not the one in the path.')
export const unstorableText = appError(
  'invalid_request',
  400,
  'The profile holds text that cannot be stored: a NUL character or half of a surrogate pair.',
)
export const unknownSkill = (name: string) =>
  new AppError(`unknown_skill: ${name}`, 400, { message: 'This installation has no skill of that name.' })
export const unknownPool = (name: string) =>
  new AppError(`unknown_pool: ${name}`, 400, { message: 'There is no pool of that name; create it first.' })
export const poolWithoutRuntime = (pool: string, runtime: string) =>
  new AppError('pool_without_runtime', 400, {
    message: `The pool '${pool}' is not for profiles of runtime '${runtime}'.`,
  })
export const preconditionFailed = (version: number) =>
  new AppError('precondition_failed', 412, {
    message: `The profile is at version ${version}: read it again, and write with that ETag.`,
    detail: { version },
  })
export const unknownMcpServer = (name: string) =>
  new AppError(`unknown_mcp_server: ${name}`, 400, { message: 'This installation has no MCP server of that name.' })

export const noSuchPool = notFound
export const poolNameTaken = (name: string) => conflict({ message: `There already is a pool named '${name}'.` })
export const poolInUse = (profiles: readonly string[]) =>
  new AppError('pool_in_use', 409, {
    message: `Profiles name this pool (${profiles.join(', ')}); give them another one or none first.`,
    detail: { profiles },
  })
