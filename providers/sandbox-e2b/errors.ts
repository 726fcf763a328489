import type { JsonAnswer } from '#kit'

interface Problem {
  readonly code?: unknown
  readonly message?: unknown
}

/** E2B answered, and refused. Its words are for the log: they never leave the runner as they are. */
export class E2bError extends Error {
  readonly status: number
  /** What E2B itself says, unlike a proxy in front of it. */
  readonly itsOwn: boolean
  constructor({ status, body }: JsonAnswer, message?: string) {
    const { code, message: said } = (body ?? {}) as Problem
    super(message ?? `E2B answered ${status}${typeof said === 'string' ? `: ${said.slice(0, 500)}` : ''}`)
    this.name = 'E2bError'
    this.status = status
    this.itsOwn = typeof code === 'number'
  }
}

export const isNotFound = (error: unknown): boolean => error instanceof E2bError && error.status === 404
export const isConflict = (error: unknown): boolean => error instanceof E2bError && error.status === 409
