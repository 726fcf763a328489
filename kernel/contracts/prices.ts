import { capability } from '../plugin.ts'
import type { Usage } from './run-event.ts'

/** Costs of single runs are far below a cent, so they are kept in millionths of one. */
export const microcentsPerCent = 1_000_000

/** What model calls cost, from the operator's price table. */
export interface Prices {
  /** The cost of one model call in cents, exact to a millionth. Undefined when no price is known for its model, which does not mean that it is free. */
  costCents(usage: Usage): number | undefined
}
export const Prices = capability<Prices>('conductor.prices')
