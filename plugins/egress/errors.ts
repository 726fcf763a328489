import { egressErrors } from '#contracts/egress'
import { secretErrors } from '#contracts/secrets'

/** The error for a host that may not stand in a profile. `why` is the rest of the sentence after the host. */
export const invalidEgress = (host: string, why: string) =>
  egressErrors.invalidEgress({ message: `The host '${host}' of egress ${why}.` })
export const needsSandbox = () =>
  egressErrors.invalidEgress({
    message: 'Only sandboxes have egress: give the profile workerMode: sandbox, or leave egress out.',
  })
export const notForTenant = () =>
  egressErrors.invalidEgress({
    message: 'Sandboxes of this tenant may reach no hosts; the operator says who may, by tenants of the plugin egress.',
  })
export const missingSecret = (name: string, host: string) =>
  secretErrors.unknownSecret({
    name,
    message: `The host '${host}' of egress is sent the secret '${name}', which this tenant does not have; create it with POST /api/secrets.`,
  })
export const tooManySecrets = (most: number) =>
  egressErrors.invalidEgress({ message: `The hosts of egress refer to more than ${most} secrets.` })
export const tooLong = (name: string, most: number) =>
  secretErrors.secretUnfit({
    message: `The value of the secret '${name}' cannot be part of a header for a host of egress: it has more than ${most} bytes.`,
  })
export const tooShort = (name: string, least: number) =>
  secretErrors.secretUnfit({
    message: `The value of the secret '${name}' has less than ${least} characters, so it could not be found where a host repeats it: write values that are not secret into the header itself, and give hosts longer credentials.`,
  })
