import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'

/** Stage of the `progress` event by which a run tells that an agent wrote to the object store. It is a bell: what was written, the runner says. */
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

/** What the agents of a runner wrote, until a conductor has heard of it. */
export interface WrittenObjects {
  note(run: WritingRun, write: Omit<ObjectWrite, 'n'>): void
  /** What a run wrote behind number `after`; what it wrote before is forgotten. */
  of(run: WritingRun, after: number): readonly ObjectWrite[]
}
export const WrittenObjects = capability<WrittenObjects>('runner.written-objects')

/** Puts what agents wrote on record, and counts it. */
export interface ObjectWrites {
  noted(run: WritingRun, writes: readonly ObjectWrite[]): Promise<void>
}
export const ObjectWrites = capability<ObjectWrites>('conductor.object-writes')
