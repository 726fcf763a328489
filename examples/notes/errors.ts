import { errorTable } from 'agent-orc/kernel'

/** What callers may be told; the sentences are for people. */
export const errors = errorTable('notes', {
  notFound: { status: 404, message: 'There is no note of this id.' },
})
