/** What a workflow is made of: `chain` nodes behind one another, and behind the last of them `wide` chains of `deep` nodes. */
export interface Shape {
  readonly name: string
  readonly chain: number
  readonly wide: number
  readonly deep: number
  /** So many one after the other, for the latency, and at once, for the throughput. */
  readonly single: number
  readonly together: number
}
export const nodesOf = ({ chain, wide, deep }: Shape): number => chain + wide * deep

/** An engine on a PostgreSQL of its own. */
export interface Engine {
  readonly name: string
  /** Runs so many workflows of a shape at once. Resolves, when all are over, to how many milliseconds each took, and all together. */
  run(shape: Shape, count: number): Promise<{ readonly each: readonly number[]; readonly all: number }>
  stop(): Promise<void>
}
