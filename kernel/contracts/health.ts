import { slot } from '../plugin.ts'

/**
 * Checks one part of a role. Rejects with a sentence when the part cannot serve: `/readyz` then answers 503 and names the part. Resolves to a
 * sentence when the part is degraded, which is shown with a 200. The check must be cheap, because probes are frequent.
 */
export type ReadinessCheck = () => Promise<string | void>
export const ReadinessChecks = slot<ReadinessCheck>('core.readiness')
