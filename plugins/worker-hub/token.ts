import { isAppError } from '#kernel'
import type { WorkerClaims, WorkerTokens } from '#contracts/workers'
import { workerTokenFailed } from './errors.ts'

/** The token of one generation of a worker. */
export interface IssuedToken {
  readonly value: string
  /** At least half of its life is left. */
  fresh(): Promise<string>
  /** A new one when less than half of the life of one that expires then is left. */
  renewal(expiresAt: number): Promise<string | undefined>
}

/** AppError as `WorkerTokens.mint`, or 503 `worker_token_failed` when that fails otherwise or gives nothing. */
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

/** Specification 4.22: a run without a token for its worker is refused by the name of what failed. */
async function mint(tokens: WorkerTokens, claims: WorkerClaims): ReturnType<WorkerTokens['mint']> {
  const minted = await tokens.mint(claims).catch((cause: unknown) => {
    throw isAppError(cause) ? cause : workerTokenFailed({ cause })
  })
  if (minted.token === '') throw workerTokenFailed()
  return minted
}
