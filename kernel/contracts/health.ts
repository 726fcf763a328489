import { slot } from '#kernel'

/** Rejects with a sentence when the part cannot serve; `/readyz` then answers 503 and names it. Must be cheap: probes are frequent. */
export type ReadinessCheck = () => Promise<void>
export const ReadinessChecks = slot<ReadinessCheck>('core.readiness')
