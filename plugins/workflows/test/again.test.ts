import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { nodesAgain } from '../graph.ts'

type After = ReadonlyMap<string, readonly string[]>
type Skips = ReadonlyMap<string, ReadonlySet<string>>

/** What is meant, and slow: begins with all nodes behind, and leaves out what is skipped until nothing changes any more. */
function slowly(from: string, after: After, skips: Skips): Set<string> {
  const reached = (skipped: ReadonlySet<string>): Set<string> => {
    const again = new Set([from])
    // The set grows while the loop iterates over it.
    for (const id of again) for (const to of after.get(id) ?? []) if (!skipped.has(to)) again.add(to)
    return again
  }
  let again = reached(new Set())
  for (;;) {
    const kept = [...skips].filter(([id]) => !again.has(id))
    const fewer = reached(new Set(kept.flatMap(([, ids]) => [...ids])))
    if (fewer.size === again.size) return again
    again = fewer
  }
}

/** A graph of up to nine nodes, each of which may wait for any earlier one, and a condition skips some of those that wait for it. */
const graph = fc.integer({ min: 1, max: 9 }).chain((size) =>
  fc.record({
    from: fc.nat({ max: size - 1 }),
    edges: fc.uniqueArray(fc.tuple(fc.nat({ max: size - 1 }), fc.nat({ max: size - 1 }), fc.boolean()), {
      maxLength: 24,
      selector: ([a, b]) => `${Math.min(a, b)} ${Math.max(a, b)}`,
    }),
  }),
)

test('what runs again after a node is what the slow rule says', () => {
  fc.assert(
    fc.property(graph, ({ from, edges }) => {
      const forward = edges
        .filter(([a, b]) => a !== b)
        .map(([a, b, skipped]) => ({ id: `${Math.min(a, b)}`, to: `${Math.max(a, b)}`, skipped }))
      const byNode = [...Map.groupBy(forward, ({ id }) => id)]
      const after = new Map(byNode.map(([id, those]) => [id, those.map(({ to }) => to)]))
      const skips = new Map(
        byNode.map(([id, those]) => [id, new Set(those.filter(({ skipped }) => skipped).map(({ to }) => to))]),
      )
      assert.deepEqual(
        [...nodesAgain(`${from}`, after, skips)].toSorted(),
        [...slowly(`${from}`, after, skips)].toSorted(),
      )
    }),
    { numRuns: 2_000 },
  )
})

test('conditions of which each keeps the next one from running again are looked at once', () => {
  const pairs = 1_000
  const after = new Map<string, string[]>([['S', []]])
  const skips = new Map<string, Set<string>>()
  const follow = (id: string, to: string): void => void after.set(id, [...(after.get(id) ?? []), to])
  for (let i = 0; i < pairs; i++) {
    follow(`c${i}`, `a${i + 1}`)
    skips.set(`c${i}`, new Set([`a${i + 1}`]))
    if (i === 0) continue
    after.get('S')!.push(`a${i}`)
    follow(`a${i}`, `c${i}`)
    follow('b', `c${i}`)
  }
  after.get('S')!.push(`a${pairs}`)
  let looks = 0
  const counted: After = Object.assign(new Map(after), {
    get: (id: string) => (looks++, after.get(id)),
  })
  assert.deepEqual([...nodesAgain('S', counted, skips)], ['S'])
  assert.ok(looks <= 10 * pairs, `${looks} looks at what follows a node`)
})
