import { appErrors } from '#contracts/apps'
import { egressErrors } from '#contracts/egress'
import { modelAccessErrors } from '#contracts/model-access'
import { secretErrors } from '#contracts/secrets'
import { skillErrors } from '#contracts/skills'
import { conflict, errorTable, invalidRequest, notFound } from '#kernel'

export const profileErrors = errorTable('profiles', {
  /** Specification 4.4: the name is part of the string. */
  unknownSkill: { named: true, status: 400, message: 'This installation has no skill with that name.' },
  unknownPool: { named: true, status: 400, message: 'No pool has that name; create it first.' },
  tooManyValues: {
    status: 400,
    about:
      'The profile has more values and names of fields than a profile may have, or nests deeper; `maxValues` and `maxDepth` say what it may have.',
  },
  unknownMcpServer: { named: true, status: 400, message: 'This installation has no MCP server with that name.' },
  poolWithoutRuntime: { status: 400, about: "The pool is not for profiles of this profile's runtime." },
  poolInUse: { status: 409, about: 'Profiles name this pool; change them first.' },
  preconditionFailed: {
    status: 412,
    about: 'The profile has changed since the version in `If-Match`: read it again, and write with its new ETag.',
  },
})

/** The refusals of a profile that may not be stored, on creation and on replacement. */
export const unfit = [
  invalidRequest,
  profileErrors.poolWithoutRuntime,
  profileErrors.unknownPool,
  profileErrors.unknownSkill,
  profileErrors.tooManyValues,
  skillErrors.skillNeedsTools,
  skillErrors.skillNeedsSandbox,
  skillErrors.skillsTooLarge,
  profileErrors.unknownMcpServer,
  appErrors.unknownToolkit,
  modelAccessErrors.unknownModel,
  egressErrors.invalidEgress,
  secretErrors.invalidRef,
  secretErrors.unknownSecret,
  secretErrors.secretsUnavailable,
] as const

export const unknownProfile = notFound
export const unknownVersion = notFound
export const nameTaken = (name: string) => conflict({ message: `There already is a profile named '${name}'.` })
export const idTaken = (id: string) => conflict({ message: `Another profile has the id '${id}'.` })
export const idChanged = () => conflict({ message: 'The id of a profile cannot change; leave it out.' })
export const tooManyProfiles = (most: number) =>
  conflict({ message: `Without a database a tenant has at most ${most} profiles; delete some first.` })
export const nameMismatch = () => invalidRequest({ message: 'The name in the body is not the one in the path.' })
export const unstorableText = (cause: unknown) =>
  invalidRequest({
    cause,
    message: 'The profile holds text that cannot be stored: a NUL character or half of a surrogate pair.',
  })
export const tooManyValues = (maxValues: number, maxDepth: number) =>
  profileErrors.tooManyValues({
    message: `A profile has at most ${maxValues} values and names of fields, all lists and objects included, and nests at most ${maxDepth} levels deep.`,
    detail: { maxValues, maxDepth },
  })
export const poolWithoutRuntime = (pool: string, runtime: string) =>
  profileErrors.poolWithoutRuntime({ message: `The pool '${pool}' is not for profiles of runtime '${runtime}'.` })
export const unknownMcpServer = (names: readonly string[], usable: readonly string[]) => {
  const [name = '', ...more] = names
  const which = more.length === 0 ? 'of that name' : `of the names ${names.join(', ')}`
  const there = usable.join(', ') || 'none'
  const message = `There is no MCP server ${which} for this tenant; there are: ${there}.`
  return profileErrors.unknownMcpServer({ name, message })
}
export const unknownToolkit = (names: readonly string[], active: readonly string[]) => {
  const [name = '', ...more] = names
  const which = more.length === 0 ? 'of that name' : `of the names ${names.join(', ')}`
  const there = active.join(', ') || 'none'
  const message = `There is no toolkit ${which} that is active for this tenant; there are: ${there}.`
  return appErrors.unknownToolkit({ name, message })
}
export const missingSecret = (name: string) =>
  secretErrors.unknownSecret({
    name,
    message: `An MCP server of this profile is sent the secret '${name}', which this tenant does not have; create it with POST /api/secrets.`,
  })
export const withoutApprovals = () =>
  invalidRequest({
    message: 'requireApproval needs the plugin approvals and a database.',
  })
export const withoutEgress = () =>
  egressErrors.invalidEgress({ message: 'This installation lets sandboxes reach no hosts: it has no plugin egress.' })
export const preconditionFailed = (version: number) =>
  profileErrors.preconditionFailed({
    message: `The profile is at version ${version}: read it again, and write with that ETag.`,
    detail: { version },
  })

export const noSuchPool = notFound
export const poolNameTaken = (name: string) => conflict({ message: `There already is a pool named '${name}'.` })
export const poolInUse = (profiles: readonly string[]) =>
  profileErrors.poolInUse({
    message: `Profiles name this pool (${profiles.join(', ')}); give them another one or none first.`,
    detail: { profiles },
  })
