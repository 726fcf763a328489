import { type Static, Type } from '@sinclair/typebox'

// What the sessions of a runner hold outside of it.

/** A sandbox worker of a session, read live from its substrate. Specification 2.12. */
export const WorkerLease = Type.Object(
  {
    sessionId: Type.String(),
    state: Type.Union(
      ['starting', 'running', 'paused', 'gone', 'unknown'].map((state) => Type.Literal(state)),
      {
        description: '`gone`: the next run launches another one; `unknown`: the substrate could not be reached.',
      },
    ),
    provider: Type.Optional(Type.String({ description: 'The substrate.' })),
    sandboxId: Type.Optional(Type.String({ description: "The substrate's own name for it." })),
    template: Type.Optional(Type.String()),
    launchedAt: Type.Optional(Type.String({ format: 'date-time' })),
    lastUsedAt: Type.Optional(Type.String({ format: 'date-time' })),
    warm: Type.Optional(Type.Boolean({ description: 'It was prepared before the session was known.' })),
    workspaceBytes: Type.Optional(
      Type.Integer({
        description: 'The size of its files at the last count; absent if its provider cannot measure it.',
      }),
    ),
  },
  { additionalProperties: true },
)
export type WorkerLease = Static<typeof WorkerLease>

/** A session's lease of the VirtualFS, which begins when the session first uses files. Specification 2.12. */
export const VfsLease = Type.Object(
  {
    sessionId: Type.String(),
    allowedMounts: Type.Optional(
      Type.Array(Type.String(), { description: 'Empty or absent: the session may use every mount.' }),
    ),
    state: Type.Optional(
      Type.Union(
        ['open', 'unknown'].map((state) => Type.Literal(state)),
        { description: '`unknown`: the VirtualFS server did not answer.' },
      ),
    ),
    openedAt: Type.Optional(Type.String({ format: 'date-time' })),
    lastUsedAt: Type.Optional(Type.String({ format: 'date-time' })),
    bytes: Type.Optional(
      Type.Integer({ description: 'In its scratch space and its layers; only when a single lease is requested.' }),
    ),
    entries: Type.Optional(Type.Integer({ description: 'Number of these files; likewise.' })),
  },
  { additionalProperties: true },
)
export type VfsLease = Static<typeof VfsLease>
