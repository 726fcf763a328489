/** One reading of something that should not grow. */
export interface Point {
  readonly minutes: number
  readonly value: number
}

export interface Line {
  /** Growth per minute. */
  readonly slope: number
  /** The standard error of the slope: how much of it may be noise. */
  readonly error: number
}

/** The straight line with the least squares through the points. A line through fewer than three points proves nothing. */
export function fit(points: readonly Point[]): Line {
  const n = points.length
  if (n < 3) return { slope: Number.NaN, error: Number.NaN }
  const mean = (of: (point: Point) => number): number => points.reduce((sum, point) => sum + of(point), 0) / n
  const x = mean(({ minutes }) => minutes)
  const y = mean(({ value }) => value)
  let xx = 0
  let xy = 0
  for (const { minutes, value } of points) {
    xx += (minutes - x) ** 2
    xy += (minutes - x) * (value - y)
  }
  const slope = xy / xx
  const rest = points.reduce((sum, { minutes, value }) => sum + (value - y - slope * (minutes - x)) ** 2, 0)
  return { slope, error: Math.sqrt(rest / (n - 2) / xx) }
}

/** `unclear`: the readings are so noisy that growth above the limit would not be seen. */
export type Finding = 'steady' | 'grows' | 'unclear'

export interface Judgement extends Line {
  readonly finding: Finding
}

/** The last two thirds of the readings: memory that a process builds up until it has done everything once is no leak. */
export function settled(points: readonly Point[]): readonly Point[] {
  const first = points[0]?.minutes ?? 0
  const last = points.at(-1)?.minutes ?? 0
  return points.filter(({ minutes }) => minutes >= first + (last - first) / 3)
}

/** Whether the last two thirds of the readings grow by more than `limit` a minute. */
export function judge(points: readonly Point[], limit: number): Judgement {
  const line = fit(settled(points))
  const { slope, error } = line
  // Two standard errors: noise exceeds them once in twenty times.
  const noise = 2 * error
  if (slope > limit && slope > noise) return { ...line, finding: 'grows' }
  const certain = slope <= limit && (noise <= limit || slope + noise <= limit)
  return { ...line, finding: certain ? 'steady' : 'unclear' }
}
