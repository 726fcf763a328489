import { createHmac, createSecretKey, randomBytes, timingSafeEqual } from 'node:crypto'
import type { FastifyRequest } from 'fastify'
import { unauthorized } from '#kernel'
import { elsewhere } from '#contracts/access-errors'
import { bearerForm, type Caller, type Tokens } from '#contracts/auth'
import type { ClientAddress, WrongKeys } from '#kit'
import type { Bootstrap } from './bootstrap.ts'

/** Finds the caller of a request by its Authorization header, or throws `unauthorized`. */
export type Authenticate = (request: Pick<FastifyRequest, 'ip' | 'headers'>) => Promise<Caller>

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

export function createAuthenticate(options: AuthenticateOptions): Authenticate {
  const { tokens, keys, bootstrap, clientOf, wrongKeys } = options
  const isBootstrap = bootstrap && secretEqual(bootstrap.key)
  return async (request) => {
    const token = bearerForm.exec(request.headers.authorization ?? '')?.[1]
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
    const hash = keys && tokens.wellFormed(token) ? tokens.hash('ao:tenant-key:v1', token) : undefined
    const name = hash?.toString('base64')
    await wrongKeys.check(address, () => name !== undefined && wrongKeys.isGood(name))
    const found = hash && (await keys!.find(hash, address))
    if (!found) {
      wrongKeys.failed(address, name)
      throw refused()
    }
    const { here, ...caller } = found
    wrongKeys.worked(name!)
    if (!here) throw elsewhere(address)
    return caller
  }
}

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
