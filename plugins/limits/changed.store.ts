import type { Statement } from '#contracts/database'
import type { OwnLimits } from '#contracts/limits'

export interface ChangedLimits {
  readonly id: string
  readonly limits: OwnLimits
  readonly at: string
}

/** Reads the changed limits of all tenants. Every process keeps them all, since few tenants have limits of their own. */
export const changedSince = (at: string): Statement => ({
  name: 'limits_changed',
  // The 30 seconds of overlap find changes that committed late; a few rows are thus read more than once.
  text: `SELECT id, limits, limits_at::text AS at FROM tenants
         WHERE limits_at > $1::timestamptz - interval '30 seconds' ORDER BY limits_at`,
  values: [at],
})
export const change = (id: string, given: OwnLimits, dropped: readonly string[]): Statement => ({
  text: `UPDATE tenants SET limits = (coalesce(limits, '{}') || $2::jsonb) - $3::text[], limits_at = clock_timestamp()
         WHERE id = $1 AND deleted_at IS NULL RETURNING id, limits, limits_at::text AS at`,
  values: [id, JSON.stringify(given), dropped],
})
