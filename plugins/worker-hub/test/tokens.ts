import { AppError } from '#kernel'
import type { WorkerClaims, WorkerTokens } from '#contracts/workers'

const dayMs = 24 * 60 * 60 * 1_000

/** Tokens that can be read and written by tests; those of the token plugin are its own tests' matter. */
export const tokenOf = (claims: WorkerClaims, expiresAt = Date.now() + dayMs): string =>
  Buffer.from(JSON.stringify({ ...claims, expiresAt })).toString('base64url')

export const plainTokens: WorkerTokens = {
  async mint(claims) {
    const expiresAt = Date.now() + dayMs
    return { token: tokenOf(claims, expiresAt), expiresAt }
  },
  async verify(authorization) {
    const text = /^Bearer (\S+)$/.exec(authorization ?? '')?.[1]
    if (text === undefined) throw new AppError('invalid or missing worker token: missing', 401)
    try {
      return JSON.parse(Buffer.from(text, 'base64url').toString()) as Awaited<ReturnType<WorkerTokens['verify']>>
    } catch {
      throw new AppError('invalid or missing worker token: malformed', 401)
    }
  },
}
