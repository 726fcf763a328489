import { slot } from '../plugin.ts'

/**
 * Rejects with a sentence when the part cannot serve; `/readyz` then answers 503 and names it. Resolves to a sentence when it
 * serves, but not as it should: that is shown beside a 200. Must be cheap: probes are frequent.
 */
export type ReadinessCheck = () => Promise<string | void>
export const ReadinessChecks = slot<ReadinessCheck>('core.readiness')
