import type { SigningFamily, SignedParts } from '#contracts/signing'
import { createSigner } from '../plugins/auth/signing/signer.ts'
import { CliError } from './terminal.ts'

/** The variable of the key with which conductors, runners and sidecars sign their requests. */
export const runnerKeyVariable = 'RUNNER_SIGNING_KEY_CURRENT'

const leastKeyBytes = 32

/** The signature headers of a request to another process. */
export type Sign = (request: SignedParts) => Record<string, string>

/** Signs requests with a key, base64 of at least 32 bytes. CliError for an invalid key; `from` names its variable. */
export function signerWith(family: SigningFamily, key: string, from: string): Sign {
  const current = Buffer.from(key, 'base64')
  if (current.length < leastKeyBytes) throw new CliError(`${from} must be base64 of at least 32 bytes`, 2)
  const { sign } = createSigner({ family, current, kv: verifiesNothing, onRefused() {} })
  return (request) => sign(request)
}

/** Signs requests to runners and sidecars if there is a key; otherwise requests are sent unsigned. */
export const runnerSigner = (key: string | undefined): Sign | undefined =>
  key ? signerWith('runner', key, runnerKeyVariable) : undefined

/** Sends a GET to a runner or a sidecar, without a tenant. */
export function getSigned(address: string, sign: Sign | undefined, signal?: AbortSignal): Promise<Response> {
  const url = new URL(address)
  const request = { tenant: '', method: 'GET', target: url.pathname + url.search, body: Buffer.alloc(0) }
  return fetch(url, { headers: sign?.(request) ?? {}, ...(signal ? { signal } : {}) })
}

/** Only verification needs nonces. */
const verifiesNothing = {
  backend: 'memory',
  claim: () => Promise.reject(new Error('this signer verifies nothing')),
  hit: () => Promise.reject(new Error('this signer counts nothing')),
  publish() {},
  subscribe: () => () => {},
} as const
