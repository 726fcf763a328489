import { errorTable } from '#kernel'

export const authErrors = errorTable('auth', {
  unknownTenant: { status: 404, about: 'There is no tenant of this id.' },
  tooManyKeys: {
    status: 409,
    about: 'The key of a member has minted as many live keys as it may; `limit` names the limit, `max` is its value.',
  },
  bodyTooLarge: { status: 413, message: 'A signed request body may have at most 1 MiB.' },
})

/** The answer to the key of a member that has minted as many as it may. */
export const tooManyKeys = (max: number) =>
  authErrors.tooManyKeys({
    message: `The limit keysPerMember is ${max}: your key has minted so many that are live, with those that they minted. Revoke some first.`,
    detail: { limit: 'keysPerMember', max },
  })
