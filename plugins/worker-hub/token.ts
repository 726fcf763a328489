import type { WorkerClaims, WorkerTokens } from '#contracts/workers'

/** The token of one generation of a worker. */
export interface IssuedToken {
  readonly value: string
  /** At least half of its life is left. */
  fresh(): Promise<string>
  /** A new one when less than half of the life of one that expires then is left. */
  renewal(expiresAt: number): Promise<string | undefined>
}

/** AppError as `WorkerTokens.mint`. */
export async function issueToken(tokens: WorkerTokens, claims: WorkerClaims): Promise<IssuedToken> {
  let latest = await tokens.mint(claims)
  const halfLifeMs = (latest.expiresAt - Date.now()) / 2
  const isOld = (expiresAt: number): boolean => expiresAt - Date.now() < halfLifeMs
  const fresh = async (): Promise<string> => {
    if (isOld(latest.expiresAt)) latest = await tokens.mint(claims)
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
