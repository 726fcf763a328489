import { errorTable } from '#kernel'

export const sandboxEventErrors = errorTable('sandbox-events', {
  unreadableEvent: {
    status: 400,
    message: 'The body cannot be read, or is larger than 64 KiB.',
    about: 'This is no delivery of the provider, or is larger than 64 KiB.',
  },
  signatureInvalid: {
    status: 401,
    message: 'The signature of this delivery is missing or wrong.',
    about: 'The provider signs, and this is not signed with its secret.',
  },
  notFound: { status: 404, message: 'No sandbox provider of this name sends events here.' },
  rateLimited: {
    status: 429,
    retry: true,
    message: 'Too many deliveries from this address; wait as Retry-After says.',
  },
})
