import { errorTable } from '#kernel'

export const authErrors = errorTable('auth', {
  unknownTenant: { status: 404, about: 'There is no tenant of this id.' },
  bodyTooLarge: { status: 413, message: 'A signed request body may have at most 1 MiB.' },
})
