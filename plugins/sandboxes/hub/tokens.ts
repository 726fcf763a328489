import { createHash, createSecretKey, hash, type KeyObject, randomUUID } from 'node:crypto'
import { errors, type JWTPayload, type JWTVerifyGetKey, jwtVerify, SignJWT } from 'jose'
import { isAppError } from '#kernel'
import { workerTokenErrors } from '#contracts/workers'
import { sandboxErrors } from '../errors.ts'

/** The identity of a worker. `docs/security.md` describes the token. */
export interface WorkerClaims {
  readonly tenantId: string
  readonly sessionId: string
  /** Only the present generation of a session's worker is accepted, so a new generation revokes older tokens at once. */
  readonly generation: number
}

/** Worker tokens: JWT HS256, `typ: ao-worker+jwt`. Specification 5.4. */
export interface WorkerTokens {
  /** `expiresAt` is in ms since the epoch. Without a configured key: AppError 503 `worker_token_unavailable`, whose sentence names the setting. */
  mint(claims: WorkerClaims): Promise<{ readonly token: string; readonly expiresAt: number }>
  /** AppError 401 whose code starts with `invalid or missing worker token` and says which case. Does not know generations. */
  verify(authorization: string | undefined): Promise<WorkerClaims & { readonly expiresAt: number }>
}

/** A polling worker gets a new token after half of this time. */
const lifetimeMs = 24 * 60 * 60 * 1_000
const algorithm = 'HS256'
const type = 'ao-worker+jwt'
const issuer = 'ao-runner'
const audience = 'ao-worker'
const required = ['sub', 'tid', 'sid', 'gen', 'jti', 'iat', 'exp']

interface Key {
  readonly id: string
  readonly secret: KeyObject
}

/** `previous` only verifies: tokens from before a rotation stay valid until they are renewed. */
export function createWorkerTokens(current: Buffer | undefined, previous: Buffer | undefined): WorkerTokens {
  const signing = current && keyOf(current)
  const keys = [signing, previous && keyOf(previous)].filter((key) => key !== undefined)
  const keyFor: JWTVerifyGetKey = ({ kid }) => {
    const key = keys.find(({ id }) => id === kid)
    if (!key) throw new errors.JWKSNoMatchingKey()
    return key.secret
  }
  return {
    async mint({ tenantId, sessionId, generation }) {
      if (!signing) throw sandboxErrors.workerTokenUnavailable()
      const issuedAt = Math.floor(Date.now() / 1_000)
      const expiresAt = issuedAt + lifetimeMs / 1_000
      const token = await new SignJWT({ tid: tenantId, sid: sessionId, gen: generation })
        .setProtectedHeader({ alg: algorithm, typ: type, kid: signing.id })
        .setIssuer(issuer)
        .setAudience(audience)
        .setSubject(sessionId)
        .setJti(randomUUID())
        .setIssuedAt(issuedAt)
        .setExpirationTime(expiresAt)
        .sign(signing.secret)
      return { token, expiresAt: expiresAt * 1_000 }
    },
    async verify(authorization) {
      const token = bearerOf(authorization)
      const verified = await jwtVerify(token, keyFor, {
        algorithms: [algorithm],
        typ: type,
        issuer,
        audience,
        requiredClaims: required,
      }).catch((cause: unknown) => {
        throw cause instanceof errors.JWTExpired ? workerTokenErrors.expired() : workerTokenErrors.malformed({ cause })
      })
      return claimsOf(verified.payload)
    },
  }
}

/** The key id is derived from the key, so it stays the same when the key becomes the previous one. */
function keyOf(bytes: Buffer): Key {
  const id = createHash('sha256').update('ao-worker-key\0').update(bytes).digest('hex').slice(0, 16)
  return { id, secret: createSecretKey(bytes) }
}

/** The name of a credential, from which nobody can tell it. */
export const nameOf = (authorization: string): string => hash('sha256', authorization, 'base64')

function bearerOf(authorization: string | undefined): string {
  if (authorization === undefined || authorization === '') throw workerTokenErrors.missing()
  const token = /^Bearer +([\w-]+\.[\w-]+\.[\w-]+)$/i.exec(authorization)?.[1]
  if (token === undefined) throw workerTokenErrors.malformed()
  return token
}

function claimsOf({ sub, tid, sid, gen, exp }: JWTPayload): WorkerClaims & { readonly expiresAt: number } {
  const sound = typeof tid === 'string' && typeof sid === 'string' && sub === sid && Number.isSafeInteger(gen)
  if (!sound) throw workerTokenErrors.malformed()
  return { tenantId: tid, sessionId: sid, generation: gen as number, expiresAt: exp! * 1_000 }
}

/** The token of one generation of a worker. */
export interface IssuedToken {
  readonly value: string
  /** The latest token; a new one when less than half of its life is left. */
  fresh(): Promise<string>
  /** A new token for a worker whose token expires at `expiresAt`, when less than half of its life is left. Otherwise undefined. */
  renewal(expiresAt: number): Promise<string | undefined>
}

/** Mints a worker's first token. AppError as `WorkerTokens.mint`, or 503 `worker_token_failed` when minting fails otherwise or gives no token. */
export async function issueToken(tokens: WorkerTokens, claims: WorkerClaims): Promise<IssuedToken> {
  let latest = await mint(tokens, claims)
  const halfLifeMs = (latest.expiresAt - Date.now()) / 2
  const isOld = (expiresAt: number): boolean => expiresAt - Date.now() < halfLifeMs
  const fresh = async (): Promise<string> => {
    if (isOld(latest.expiresAt)) latest = await mint(tokens, claims)
    return latest.token
  }
  return {
    get value() {
      return latest.token
    },
    fresh,
    renewal: async (expiresAt) => (isOld(expiresAt) ? fresh() : undefined),
  }
}

/** Specification 4.22: a run without a token for its worker is refused with the code of the failure. */
async function mint(tokens: WorkerTokens, claims: WorkerClaims): ReturnType<WorkerTokens['mint']> {
  const minted = await tokens.mint(claims).catch((cause: unknown) => {
    throw isAppError(cause) ? cause : sandboxErrors.workerTokenFailed({ cause })
  })
  if (minted.token === '') throw sandboxErrors.workerTokenFailed()
  return minted
}
