import { errorTable } from './errors.ts'

/** Refusals of callers on public listeners, in addition to 401 and 403. */
export const accessErrors = errorTable('access', {
  addressNotAllowed: {
    status: 403,
    about:
      'The key is valid, but may only be used from the networks in its `allowedAddresses`, which do not contain this address.',
  },
  tooManyWrongKeys: {
    status: 429,
    retry: 'later',
    message: 'Too many wrong keys came from this address; try again later.',
    about:
      'Too many wrong keys came from this address within a minute. Keys that were in use before continue to work from there; see `Retry-After`.',
  },
})

/** The error for a valid key that is used from an address outside its networks. */
export const elsewhere = (address: string) =>
  accessErrors.addressNotAllowed({ message: `This key may not be used from the address ${address}.` })
