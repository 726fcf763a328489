import { errorTable } from '#kernel'

export const authErrors = errorTable('auth', {
  unknownTenant: { status: 404, about: 'No tenant has this id.' },
  bodyTooLarge: { status: 413, message: 'A signed request body may have at most 1 MiB.' },
})
