import { createHmac, createSecretKey, randomBytes, timingSafeEqual } from 'node:crypto'
import { unauthorized } from '#kernel'
import { bearerForm, type Caller, type Tokens } from '#contracts/auth'

/** Finds the caller of a request by its Authorization header, or throws `unauthorized`. */
export type Authenticate = (authorization: string | undefined) => Promise<Caller>

/** Finds a live key by its hash; undefined when unknown, revoked, expired, or of a deleted tenant. */
export interface KeyLookup {
  find(hash: Buffer): Promise<Caller | undefined>
  /** False for a tenant that was deleted or never was: the bootstrap key, which has no row, is of no use to it either. */
  tenantLives(tenantId: string): Promise<boolean>
}

export interface AuthenticateOptions {
  readonly tokens: Tokens
  /** Undefined in a role without a database: then only the bootstrap key is a key. */
  readonly keys: KeyLookup | undefined
  readonly bootstrap: { readonly key: string; readonly tenantId: string } | undefined
}

export function createAuthenticate({ tokens, keys, bootstrap }: AuthenticateOptions): Authenticate {
  const isBootstrap = bootstrap && secretEqual(bootstrap.key)
  return async (authorization = '') => {
    const token = bearerForm.exec(authorization)?.[1]
    if (token === undefined) throw refused()
    if (bootstrap && isBootstrap?.(token)) {
      const { tenantId } = bootstrap
      if (keys && !(await keys.tenantLives(tenantId))) throw refused()
      return { tenantId, role: 'owner', keyId: 'bootstrap' }
    }
    if (!keys || !tokens.wellFormed(token)) throw refused()
    const caller = await keys.find(tokens.hash('ao:tenant-key:v1', token))
    if (!caller) throw refused()
    return caller
  }
}

const refused = () =>
  unauthorized({
    message: 'Send one valid API key of a tenant: `Authorization: Bearer ao_…`.',
    headers: { 'www-authenticate': 'Bearer' },
  })

/** Compares with a secret in constant time, whatever the lengths: both sides are hashed under a key nobody knows. */
function secretEqual(secret: string): (text: string) => boolean {
  const key = createSecretKey(randomBytes(32))
  const digest = (text: string): Buffer => createHmac('sha256', key).update(text).digest()
  const expected = digest(secret)
  return (text) => timingSafeEqual(digest(text), expected)
}
