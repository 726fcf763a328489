/** Legitimate values are less deep. Deeper parts are cut, because writing them would overflow the stack. */
const maxDepth = 64

/**
 * A copy of `value` that JSON can represent. A reference to an ancestor becomes `[circular]` (specification 4.23), a bigint its digits, and
 * anything deeper than 64 levels `[too deep]`.
 */
export function withoutCycles(value: unknown): unknown {
  return copy(value, [])
}

function copy(value: unknown, above: readonly object[]): unknown {
  if (typeof value === 'bigint') return value.toString()
  if (typeof value !== 'object' || value === null) return value
  if (above.includes(value)) return '[circular]'
  if (above.length === maxDepth) return '[too deep]'
  const path = [...above, value]
  if (Array.isArray(value)) return value.map((item) => copy(item, path))
  if ('toJSON' in value && typeof value.toJSON === 'function') return copy(value.toJSON(), path)
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, copy(item, path)]))
}
