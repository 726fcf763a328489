import type { WorkerClaims, WorkerTokens } from '#contracts/workers'

/** The token of one generation of a worker. */
export interface IssuedToken {
  readonly value: string
  /** A new one when less than half of the life of one that expires then is left. */
  renewal(expiresAt: number): Promise<string | undefined>
}

/** AppError as `WorkerTokens.mint`. */
export async function issueToken(tokens: WorkerTokens, claims: WorkerClaims): Promise<IssuedToken> {
  let latest = await tokens.mint(claims)
  const halfLifeMs = (latest.expiresAt - Date.now()) / 2
  const isOld = (expiresAt: number): boolean => expiresAt - Date.now() < halfLifeMs
  return {
    get value() {
      return latest.token
    },
    async renewal(expiresAt) {
      if (!isOld(expiresAt)) return undefined
      if (isOld(latest.expiresAt)) latest = await tokens.mint(claims)
      return latest.token
    },
  }
}
