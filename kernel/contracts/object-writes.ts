import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'

/**
 * The stage of the `progress` event that announces that an agent wrote to the object store. The event carries no data; the runner reports the
 * writes.
 */
export const writtenStage = 'object_written'

/** A write that an agent made with a tool of its runner. */
export const ObjectWrite = Type.Object({
  n: Type.Integer({ description: 'Grows with each write of a runner, over its restarts as well.' }),
  action: Type.Union([Type.Literal('storage.put'), Type.Literal('storage.delete')]),
  key: Type.String(),
  bytes: Type.Integer({ description: 'How many more the tenant has since; 0 where the writer has counted it itself.' }),
  objects: Type.Integer({ description: 'The same of objects.' }),
})
export type ObjectWrite = Static<typeof ObjectWrite>

interface WritingRun {
  readonly tenantId: string
  readonly runId: string
}

/** The writes of a runner's agents, kept until a conductor has recorded them. */
export interface WrittenObjects {
  note(run: WritingRun, write: Omit<ObjectWrite, 'n'>): void
  /** The writes of a run after number `after`. Earlier writes are forgotten. */
  of(run: WritingRun, after: number): readonly ObjectWrite[]
}
export const WrittenObjects = capability<WrittenObjects>('runner.written-objects')

/** Records the writes of agents, and counts them. */
export interface ObjectWrites {
  noted(run: WritingRun, writes: readonly ObjectWrite[]): Promise<void>
}
export const ObjectWrites = capability<ObjectWrites>('conductor.object-writes')
