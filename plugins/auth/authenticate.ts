import { createHmac, createSecretKey, randomBytes, timingSafeEqual } from 'node:crypto'
import type { FastifyRequest } from 'fastify'
import { unauthorized } from '#kernel'
import { elsewhere } from '#contracts/access-errors'
import { bearerForm, type Caller, type Tokens } from '#contracts/auth'
import type { ClientAddress, WrongKeys } from '#kit'
import type { Bootstrap } from './bootstrap.ts'

/** Finds the caller of a request by its Authorization header, or throws `unauthorized`. */
export type Authenticate = (request: Pick<FastifyRequest, 'ip' | 'headers'>) => Promise<Caller>

/**
 * The tenant whose key a request brings, if that key worked lately from where it comes. It says whose limits the request meets before
 * its key is looked up, and lets nobody in.
 */
export type TenantLately = (request: Pick<FastifyRequest, 'ip' | 'headers'>) => string | undefined

/** Keys that worked lately, each from one address. */
const mostLately = 10_000

/** A live key. `here`: it may be used from the caller's address. */
interface FoundKey extends Caller {
  readonly here: boolean
}

export interface KeyLookup {
  /** Finds a live key by its hash; undefined when unknown, revoked, expired, or of a deleted tenant. */
  find(hash: Buffer, address: string): Promise<FoundKey | undefined>
}

interface AuthenticateOptions {
  readonly tokens: Tokens
  /** Undefined in a role without a database: then only the bootstrap key is accepted. */
  readonly keys: KeyLookup | undefined
  readonly bootstrap: Bootstrap | undefined
  readonly clientOf: ClientAddress
  readonly wrongKeys: WrongKeys
}

export function createAuthenticate(options: AuthenticateOptions): {
  readonly authenticate: Authenticate
  readonly tenantLately: TenantLately
} {
  const { tokens, keys, bootstrap, clientOf, wrongKeys } = options
  const isBootstrap = bootstrap && secretEqual(bootstrap.key)
  // A request is asked twice for the hash of its key, which costs more than all else that is done with the key here.
  const hashes = new WeakMap<object, Buffer>()
  const hashOf = (request: object, token: string): Buffer | undefined => {
    const known = hashes.get(request)
    if (known || !keys || !tokens.wellFormed(token)) return known
    const hash = tokens.hash('ao:tenant-key:v1', token)
    hashes.set(request, hash)
    return hash
  }
  const lately = new Map<string, string>()
  const worked = (name: string, tenantId: string): void => {
    if (lately.size >= mostLately && !lately.has(name)) lately.delete(lately.keys().next().value!)
    lately.set(name, tenantId)
  }
  const tenantLately: TenantLately = (request) => {
    const token = tokenOf(request)
    const hash = token === undefined || lately.size === 0 ? undefined : hashOf(request, token)
    return hash && lately.get(placed(hash.toString('base64'), clientOf(request)))
  }
  const authenticate: Authenticate = async (request) => {
    const token = tokenOf(request)
    // A request without a key does not count as a wrong key.
    if (token === undefined) throw refused()
    const address = clientOf(request)
    if (bootstrap && isBootstrap?.(token)) {
      await wrongKeys.check(address, () => wrongKeys.isGood('bootstrap'))
      const caller = await bootstrap.caller()
      if (caller) wrongKeys.worked('bootstrap')
      else wrongKeys.failed(address, 'bootstrap')
      return caller ?? Promise.reject(refused())
    }
    const hash = hashOf(request, token)
    const name = hash?.toString('base64')
    const found = await wrongKeys.find(address, name, () => keys!.find(hash!, address))
    if (!found) {
      if (name !== undefined) lately.delete(placed(name, address))
      throw refused()
    }
    const { here, ...caller } = found
    wrongKeys.worked(name!)
    if (!here) throw elsewhere(address)
    worked(placed(name!, address), caller.tenantId)
    return caller
  }
  return { authenticate, tenantLately }
}

const tokenOf = ({ headers }: Pick<FastifyRequest, 'headers'>): string | undefined =>
  bearerForm.exec(headers.authorization ?? '')?.[1]
const placed = (key: string, address: string): string => `${key} ${address}`

const refused = () =>
  unauthorized({
    message: 'Send one valid API key of a tenant: `Authorization: Bearer ao_…`.',
    headers: { 'www-authenticate': 'Bearer' },
  })

/** Compares a text with a secret in constant time, whatever their lengths. Both sides are hashed under a random key that nobody knows. */
function secretEqual(secret: string): (text: string) => boolean {
  const key = createSecretKey(randomBytes(32))
  const digest = (text: string): Buffer => createHmac('sha256', key).update(text).digest()
  const expected = digest(secret)
  return (text) => timingSafeEqual(digest(text), expected)
}
