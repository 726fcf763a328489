import type { Billing } from '#contracts/billing'
import { microcentsPerCent, type Prices } from '#contracts/prices'
import type { FinishRun, StartRun } from '#contracts/run-store'
import { microcents } from './rows.ts'

/** What the statements of runs need to charge for them. */
export interface Charges {
  /** Prices for runs that are ended on behalf of another process. Undefined: the cost of such runs is unknown. */
  readonly prices: Prices | undefined
  /** Undefined: the statements contain no billing. */
  readonly billing: Billing | undefined
}

/** The parts of a start statement that hold money for the run. */
export interface Holding {
  /** SQL after the columns that the insert into `runs` returns. `snapshot`: where the profile of an existing session is found. */
  held(snapshot?: string): string
  /** SQL after the columns that the statement returns. */
  readonly told: string
}

const most = (snapshot: string | undefined): string =>
  snapshot === undefined
    ? ':hold::bigint'
    : `least(:hold::bigint, ceil((${snapshot} #>> '{limits,maxCostCents}')::numeric * ${microcentsPerCent})::bigint)`

// The call stands in the RETURNING of the insert. It therefore runs exactly once per inserted row, and a refusal undoes the insert.
export const holding: { readonly none: Holding; readonly some: Holding } = {
  none: { held: () => '', told: '' },
  some: {
    held: (
      snapshot,
    ) => `, billing_hold(:tenant, id, ${most(snapshot)}, session_id, profile, :publicKey, :person, :parentRun,
      :parentSpent::bigint, :rootRun, :leastLeft::bigint) AS held`,
    told: ', (SELECT held FROM run)::float8 AS held',
  },
}

/** The values that `Holding.held` names, in addition to those of the run. */
export function holdValues(billing: Billing, { task, create }: Pick<StartRun, 'task' | 'create'>) {
  const { parent, chat } = task
  const caps = [create?.profile.limits.maxCostCents, parent?.budgetCents].filter((cap) => cap !== undefined)
  return {
    hold: Math.min(billing.holdMicrocents, ...caps.map(microcents)),
    leastLeft: Math.max(1, billing.reserveMicrocents),
    publicKey: chat?.keyId,
    parentRun: parent?.runId,
    parentSpent: parent && microcents(task.parentSpentCents ?? 0),
    rootRun: parent?.rootId ?? parent?.runId,
  }
}

// A run is charged exactly once, because its row becomes ended in the same statement.
/** The billed seconds of a run that ends, without the time in which it waited for people and kept no sandbox awake. */
export const secondsOfRun =
  'round(least(extract(epoch FROM finished_at - started_at) - coalesce(waited_ms, 0) / 1000.0, :runSeconds::int))'
/** SQL after the columns that the end of a run returns. */
export const settling = {
  none: '',
  plain: ', billing_settle(:tenant, id, profile, :known::bigint, :toolCost::bigint, 0, :prices, :unpriced::boolean)',
  sandbox: `, billing_settle(:tenant, id, profile, :known::bigint, :toolCost::bigint,
    round((:idleSeconds::int + ${secondsOfRun}) * :sandboxRate::numeric)::bigint, :prices, :unpriced::boolean)`,
}

/** The values that `settling` names, in addition to those of the end. */
export const settleValues = (
  { prices }: Charges,
  { usage, toolCalls = 0 }: Pick<FinishRun, 'usage' | 'toolCalls'>,
) => ({
  known: microcents(usage?.costCents ?? usage?.knownCostCents ?? 0),
  unpriced: usage !== undefined && usage.costCents === undefined,
  toolCost: Math.round(toolCalls * (prices?.services.toolCall ?? 0)),
  sandboxRate: prices?.services.sandboxSecond ?? 0,
  prices: prices?.version,
})
