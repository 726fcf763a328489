import type { WorkflowNode } from './node.schema.ts'
import type { NodeBody } from './schema.ts'

/** The most dependencies of a definition, with those that branches are. Creating a run and showing it read all of them at once. */
export const mostEdges = 40_000

export const textsOf = (list: unknown): string[] =>
  Array.isArray(list) ? list.filter((one): one is string => typeof one === 'string') : []

/** The nodes in the branches of a condition. It skips those of the branch that is not taken. */
export function branchesOf(node: NodeBody | WorkflowNode): string[] {
  const { then, else: otherwise } = node as { then?: unknown; else?: unknown }
  return node.type === 'condition' ? [...textsOf(then), ...textsOf(otherwise)] : []
}

/** How many dependencies the nodes name. Counts entries that are none as well, and looks at none of them. */
export const countEdges = (nodes: readonly NodeBody[]): number =>
  nodes.reduce((sum, node) => {
    const { dependsOn, then, else: otherwise } = node as Readonly<Record<string, unknown>>
    return [dependsOn, then, otherwise].reduce<number>((all, one) => all + (Array.isArray(one) ? one.length : 0), sum)
  }, 0)

/** The dependencies of each node, including those that a condition adds by naming a node as a branch. */
export function edgesOf(nodes: readonly NodeBody[]): Map<string, Set<string>> {
  const edges = new Map<string, Set<string>>()
  for (const { id, dependsOn } of nodes) {
    if (typeof id === 'string') edges.set(id, new Set(textsOf(dependsOn)))
  }
  for (const node of nodes) {
    if (typeof node.id === 'string') for (const branch of branchesOf(node)) edges.get(branch)?.add(node.id)
  }
  return edges
}

/** The nodes of a cycle, with the first one again at the end. Undefined: there is no cycle. No recursion, since 10,000 nodes may be a chain. */
export function cycleIn(edges: ReadonlyMap<string, ReadonlySet<string>>): string[] | undefined {
  const done = new Set<string>()
  for (const start of edges.keys()) {
    if (done.has(start)) continue
    const path: string[] = [start]
    const on = new Set(path)
    const left = [[...(edges.get(start) ?? [])]]
    while (path.length > 0) {
      const next = left.at(-1)!.pop()
      if (next === undefined) {
        left.pop()
        const last = path.pop()!
        on.delete(last)
        done.add(last)
      } else if (on.has(next)) {
        // Edges point from a node to its dependencies. People read a cycle from the first node to run, so it is reversed.
        return [...path.slice(path.indexOf(next)), next].reverse()
      } else if (!done.has(next) && edges.has(next)) {
        path.push(next)
        on.add(next)
        left.push([...edges.get(next)!])
      }
    }
  }
  return undefined
}

/** All nodes before a node, in a graph without cycles. */
export function nodesBefore(edges: ReadonlyMap<string, ReadonlySet<string>>, id: string): ReadonlySet<string> {
  const all = new Set(edges.get(id))
  // The set grows while the loop iterates over it.
  for (const one of all) for (const before of edges.get(one) ?? []) all.add(before)
  return all
}

/**
 * The nodes that run again after `from`, with itself. `after`: what waits for each node, in a graph without cycles. `skips`: what each condition skipped,
 * which stays skipped unless the condition itself runs again.
 */
export function nodesAgain(
  from: string,
  after: ReadonlyMap<string, readonly string[]>,
  skips: ReadonlyMap<string, ReadonlySet<string>>,
): Set<string> {
  const again = new Set([from])
  // The set grows while the loop iterates over it.
  for (const id of again) for (const to of after.get(id) ?? []) again.add(to)
  // How many nodes that run again each one waits for. Without any, it does not run again itself, and so on: every edge is looked at twice.
  const waits = new Map<string, number>()
  for (const id of again) for (const to of after.get(id) ?? []) waits.set(to, (waits.get(to) ?? 0) + 1)
  const left = [...skips].flatMap(([id, ids]) => (again.has(id) ? [] : [...ids]))
  for (let id = left.pop(); id !== undefined; id = left.pop()) {
    if (id === from || !again.delete(id)) continue
    for (const skipped of skips.get(id) ?? []) left.push(skipped)
    for (const to of after.get(id) ?? []) {
      waits.set(to, waits.get(to)! - 1)
      if (waits.get(to) === 0) left.push(to)
    }
  }
  return again
}
