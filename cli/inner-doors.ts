import type { SigningFamily, SignedParts } from '#contracts/signing'
import { createSigner } from '../plugins/auth/signing/signer.ts'
import { CliError } from './terminal.ts'

/** Where commands find the key with which conductors, runners and sidecars prove who they are, as these roles do. */
export const runnerKeyVariable = 'RUNNER_SIGNING_KEY_CURRENT'

const leastKeyBytes = 32

/** The headers that prove to an inner listener who asks. */
export type Sign = (request: SignedParts) => Record<string, string>

/** Signs requests with a key, base64 of at least 32 bytes. CliError when it is none; `from` names its variable. */
export function signerWith(family: SigningFamily, key: string, from: string): Sign {
  const current = Buffer.from(key, 'base64')
  if (current.length < leastKeyBytes) throw new CliError(`${from} must be base64 of at least 32 bytes`, 2)
  const { sign } = createSigner({ family, current, kv: verifiesNothing, onRefused() {} })
  return (request) => sign(request)
}

/** Signs for runners and sidecars when there is a key; without one their listeners are taken to be open. */
export const runnerSigner = (key: string | undefined): Sign | undefined =>
  key ? signerWith('runner', key, runnerKeyVariable) : undefined

/** Asks a runner or a sidecar about no tenant in particular. */
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
