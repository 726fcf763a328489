import type { Hostile, Verdict } from './attack.ts'

/** A run as lists show it. */
interface Run {
  readonly runId: string
  readonly startedAt: string
  readonly finishedAt?: string
  readonly parent?: { readonly rootId?: string; readonly depth: number }
}

/** Whether the trees of delegations of a tenant kept to its limits, and reached them: an attack that was stopped before proves nothing. */
export async function judgeDelegations({ conductor, key, limits }: Hostile): Promise<Verdict[]> {
  const { delegatedRuns, delegationDepth, delegatedAtOnce } = limits
  const response = await fetch(`${conductor}/api/runs`, { headers: { authorization: `Bearer ${key}` } })
  if (!response.ok) throw new Error(`GET /api/runs: ${response.status} ${await response.text()}`)
  const children = ((await response.json()) as Run[]).filter(({ parent }) => parent !== undefined)
  const trees = [...Map.groupBy(children, ({ parent }) => parent!.rootId).values()]
  const most = (of: readonly number[]): number => Math.max(0, ...of)
  const kept = (what: string, limit: string, value: number, max: number): Verdict => ({
    text: `${what}: ${value} of ${max} (${limit}), which is reached and kept`,
    ok: value === max,
  })
  return [
    kept('runs that one led to', 'delegatedRuns', most(trees.map((tree) => tree.length)), delegatedRuns),
    kept('levels', 'delegationDepth', most(children.map(({ parent }) => parent!.depth)), delegationDepth),
    kept('delegated runs of one tree at once', 'delegatedAtOnce', most(trees.map(atOnce)), delegatedAtOnce),
  ]
}

/** How many of these runs executed at once, at most. */
function atOnce(runs: readonly Run[]): number {
  const steps = runs.flatMap(({ startedAt, finishedAt }) => [
    { at: startedAt, by: 1 },
    ...(finishedAt === undefined ? [] : [{ at: finishedAt, by: -1 }]),
  ])
  // Of one millisecond ends go first: the next one begins when one has ended.
  steps.sort((a, b) => a.at.localeCompare(b.at) || a.by - b.by)
  let open = 0
  return Math.max(0, ...steps.map(({ by }) => (open += by)))
}
