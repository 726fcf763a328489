import { createHash, randomBytes } from 'node:crypto'
import type { Database, TenantTx } from '#contracts/database'

/** For so long the owner of an account may take to connect it. */
export const authorizationSeconds = 10 * 60
/** Links of one account that hold at once; beyond that the oldest ends. */
const mostOpen = 5

/** What comes back with the owner of an account: whose tenant it is, and what nobody can guess. It names one attempt, once. */
export const newState = (tenantId: string): string =>
  `${Buffer.from(tenantId).toString('base64url')}.${randomBytes(32).toString('base64url')}`

const stateForm = /^([A-Za-z0-9_-]{1,200})\.[A-Za-z0-9_-]{43}$/
/** Undefined for text that `newState` has not made. */
export function tenantOfState(state: string): string | undefined {
  const encoded = stateForm.exec(state)?.[1]
  if (encoded === undefined) return undefined
  const tenantId = Buffer.from(encoded, 'base64url').toString()
  return /^[\x21-\x7e]+$/.test(tenantId) ? tenantId : undefined
}

const hashOf = (state: string): string => createHash('sha256').update(state).digest('hex')

/** What is known of an attempt when its owner comes back. */
export interface Authorization {
  readonly connectionId: string
  /** Sealed. */
  readonly kept: string
  readonly returnUrl: string | null
}

export async function storeAuthorization(tx: TenantTx, state: string, of: Authorization): Promise<void> {
  const { tenantId } = tx
  await tx.query({
    text: `DELETE FROM app_authorizations WHERE tenant_id = $1 AND connection_id = $2 AND (expires_at <= now() OR state_hash IN (
             SELECT state_hash FROM app_authorizations WHERE tenant_id = $1 AND connection_id = $2
             ORDER BY expires_at DESC OFFSET ${mostOpen - 1}))`,
    values: [tenantId, of.connectionId],
  })
  await tx.query({
    text: `INSERT INTO app_authorizations (tenant_id, state_hash, connection_id, kept, return_url, expires_at)
           VALUES ($1, $2, $3, $4, $5, now() + interval '${authorizationSeconds} seconds')`,
    values: [tenantId, hashOf(state), of.connectionId, of.kept, of.returnUrl],
  })
}

/** Uses it up. Undefined: nobody began it, its time is over, or it was used. */
export async function takeAuthorization(
  database: Database,
  tenantId: string,
  state: string,
): Promise<Authorization | undefined> {
  const take = {
    text: `DELETE FROM app_authorizations WHERE tenant_id = $1 AND state_hash = $2 AND expires_at > now()
           RETURNING connection_id AS "connectionId", kept, return_url AS "returnUrl"`,
    values: [tenantId, hashOf(state)],
  }
  const [[row]] = await database.batch<[Authorization[]]>(tenantId, [take])
  return row
}
