import type { TenantTx } from '#contracts/database'
import { dueNodes, type DueRow, firstClaim, type FirstClaim } from './claims.store.ts'
import type { EndedWell, NodeRow, NodeTable } from './nodes.store.ts'
import { isWell, type Outcome } from './outcome.ts'
import { type HeldRow, heldRun, type RunRow, toRunRow } from './run-row.ts'
import { doneNodes, type LastOutput } from './run-output.ts'

/** What is asked for together with the run: each round trip costs more than what most of them ask for. */
export interface Opening {
  /** What came of attempts. */
  readonly outcomes?: readonly Outcome[]
  /** Whose look it is at what is due, and what is no business of that look. */
  readonly due?: Parameters<typeof dueNodes>[2] | undefined
  /** What is claimed at once, unless something has to come before. */
  readonly claim?: FirstClaim
  /** The wake-up that is not needed any more once the run is over. */
  readonly guard?: string | undefined
}

/** What came of the first claim of a run. */
export interface First {
  readonly claimed: readonly NodeRow[]
  /** The nodes that were done; undefined: it was not asked for, as nothing has ended. */
  readonly done: readonly LastOutput[] | undefined
}

interface Opened {
  readonly run: RunRow
  /** What outcomes have ended or made ready already, and the outcomes that are still to be taken. */
  readonly ended: readonly EndedWell[]
  readonly others: readonly Outcome[]
  readonly due: readonly DueRow[]
  readonly first: First
  /** Nodes may be ready, or done, of which the first claim knew nothing. */
  readonly mayBeMore: boolean
}

/** Takes hold of a run in a transaction. Undefined: there is no such run. */
export async function openRun(
  tx: TenantTx,
  runId: string,
  nodes: NodeTable,
  { outcomes = [], due, claim }: Opening,
): Promise<Opened | undefined> {
  const well = outcomes.filter(isWell)
  const others = outcomes.filter((one) => !isWell(one))
  // What others come to is decided first.
  const claims = claim && claim.most > 0 && others.length === 0
  const { tenantId } = tx
  const [[held], ...found] = await tx.queries<[HeldRow[], ...object[][]]>([
    heldRun(tenantId, runId),
    ...(well.length > 0 ? [nodes.endedWell(well)] : []),
    // Before the claim: what is claimed here is not due.
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
  // Where keys are held, or nodes are under way of which some may be due, the first claim takes none.
  const knows = claims && (claimed.length > 0 || !(run.keyed || due))
  return { run, ended, others, due: dueRows, first, mayBeMore: !knows }
}
