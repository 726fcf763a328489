import { type Static, Type } from 'agent-orc/kernel'

/** What a client writes. PostgreSQL stores any text but a NUL character, so the schema refuses that one. */
export const NoteInput = Type.Object(
  { text: Type.String({ minLength: 1, maxLength: 10_000, pattern: '^[^\\u0000]*$' }) },
  { additionalProperties: false },
)

export const Note = Type.Object({
  id: Type.String(),
  text: Type.String(),
  createdBy: Type.String({ description: 'Id of the key that wrote it.' }),
  createdAt: Type.String({ format: 'date-time' }),
})
export type Note = Static<typeof Note>

export const IdParams = Type.Object({ id: Type.String() })
