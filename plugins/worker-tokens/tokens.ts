import { createHash, createSecretKey, type KeyObject, randomUUID } from 'node:crypto'
import { errors, type JWTPayload, type JWTVerifyGetKey, jwtVerify, SignJWT } from 'jose'
import type { WorkerClaims, WorkerTokens } from '#contracts/workers'
import { expiredToken, malformedToken, missingToken, workerTokenUnavailable } from './errors.ts'

/** A worker that polls is given a new one when half of it is over. */
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

/** `previous` only verifies: tokens of before a rotation live on until they are renewed. */
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
      if (!signing) throw workerTokenUnavailable()
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
        throw cause instanceof errors.JWTExpired ? expiredToken() : malformedToken({ cause })
      })
      return claimsOf(verified.payload)
    },
  }
}

/** Named by what it is, so that a key keeps its name when it becomes the previous one. */
function keyOf(bytes: Buffer): Key {
  const id = createHash('sha256').update('ao-worker-key\0').update(bytes).digest('hex').slice(0, 16)
  return { id, secret: createSecretKey(bytes) }
}

function bearerOf(authorization: string | undefined): string {
  if (authorization === undefined || authorization === '') throw missingToken()
  const token = /^Bearer +([\w-]+\.[\w-]+\.[\w-]+)$/i.exec(authorization)?.[1]
  if (token === undefined) throw malformedToken()
  return token
}

function claimsOf({ sub, tid, sid, gen, exp }: JWTPayload): WorkerClaims & { readonly expiresAt: number } {
  const sound = typeof tid === 'string' && typeof sid === 'string' && sub === sid && Number.isSafeInteger(gen)
  if (!sound) throw malformedToken()
  return { tenantId: tid, sessionId: sid, generation: gen as number, expiresAt: exp! * 1_000 }
}
