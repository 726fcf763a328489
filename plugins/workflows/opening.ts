import type { TenantTx } from '#contracts/database'
import { dueNodes, type DueRow, firstClaim, type FirstClaim } from './claims.store.ts'
import type { EndedWell, NodeRow, NodeTable } from './nodes.store.ts'
import { isWell, type Outcome } from './outcome.ts'
import { type HeldRow, heldRun, type RunRow, toRunRow } from './run-row.ts'
import { doneNodes, type LastOutput } from './run-output.ts'

/** What a transition sends together with the lock of the run: a round trip costs more than most of these statements. */
export interface Opening {
  /** Outcomes of attempts, which this transition stores. */
  readonly outcomes?: readonly Outcome[]
  /** Looks for due nodes. `owner`: this process; `underWay`: nodes that it must not report. */
  readonly due?: Parameters<typeof dueNodes>[2] | undefined
  /** Claims nodes in the same round trip, unless other outcomes have to be applied first. */
  readonly claim?: FirstClaim
  /** Id of the wake-up to delete when the run ends, because it is no longer needed then. */
  readonly guard?: string | undefined
}

/** The result of the first claim of a run. */
export interface First {
  readonly claimed: readonly NodeRow[]
  /** The nodes that were executed. Undefined: they were not read, because no node ended in this transition. */
  readonly done: readonly LastOutput[] | undefined
}

interface Opened {
  readonly run: RunRow
  /** `ended`: nodes that the stored outcomes ended or made ready. `others`: outcomes that still have to be applied. */
  readonly ended: readonly EndedWell[]
  readonly others: readonly Outcome[]
  readonly due: readonly DueRow[]
  readonly first: First
  /** There may be ready or executed nodes that the first claim did not see. */
  readonly mayBeMore: boolean
}

/** Locks a run in a transaction and sends the statements of the opening. Undefined: there is no such run. */
export async function openRun(
  tx: TenantTx,
  runId: string,
  nodes: NodeTable,
  { outcomes = [], due, claim }: Opening,
): Promise<Opened | undefined> {
  const well = outcomes.filter(isWell)
  const others = outcomes.filter((one) => !isWell(one))
  // Other outcomes may change which nodes are ready, so they are applied before any claim.
  const claims = claim && claim.most > 0 && others.length === 0
  const { tenantId } = tx
  const [[held], ...found] = await tx.queries<[HeldRow[], ...object[][]]>([
    heldRun(tenantId, runId),
    ...(well.length > 0 ? [nodes.endedWell(well)] : []),
    // Sent before the claim, so that the nodes claimed here are not reported as due.
    ...(due ? [dueNodes(tenantId, runId, due)] : []),
    ...(claims ? [firstClaim(tenantId, runId, claim, due !== undefined)] : []),
    ...(claims && well.length > 0 ? [doneNodes({ tenantId, runId }, well.length)] : []),
  ])
  if (!held) return undefined
  const run = toRunRow(held)
  const ended = well.length > 0 ? (found.shift() as EndedWell[]) : []
  const dueRows = due ? (found.shift() as DueRow[]) : []
  const claimed = claims ? (found.shift() as NodeRow[]) : []
  const first = { claimed, done: found.shift() as LastOutput[] | undefined }
  // The first claim takes nothing if the run has concurrency keys or if running nodes may be due. An empty claim then does not prove that no node is
  // ready.
  const knows = claims && (claimed.length > 0 || !(run.keyed || due))
  return { run, ended, others, due: dueRows, first, mayBeMore: !knows }
}
