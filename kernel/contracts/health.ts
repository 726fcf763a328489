import { slot } from '../plugin.ts'

/**
 * Checks one part of a role. It rejects with a sentence when the part cannot serve: `/readyz` then answers 503 and names it.
 * It resolves to a sentence when the part serves in a degraded way, which is shown beside a 200. It must be cheap: probes are frequent.
 */
export type ReadinessCheck = () => Promise<string | void>
export const ReadinessChecks = slot<ReadinessCheck>('core.readiness')
