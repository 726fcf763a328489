import type { JsonAnswer } from '#kit'

interface Status {
  readonly reason?: unknown
  readonly message?: unknown
}

/** The API server answered, and refused. Its words are for the log: they never leave the runner as they are. */
export class KubernetesError extends Error {
  readonly status: number
  readonly reason: string | undefined
  constructor({ status, body }: JsonAnswer, what: string) {
    const { reason, message } = (body ?? {}) as Status
    super(`Kubernetes refused to ${what}: ${status}${typeof message === 'string' ? ` ${message.slice(0, 500)}` : ''}`)
    this.name = 'KubernetesError'
    this.status = status
    this.reason = typeof reason === 'string' ? reason : undefined
  }
}

export const isNotFound = (error: unknown): boolean => error instanceof KubernetesError && error.status === 404
export const isThere = (error: unknown): boolean => error instanceof KubernetesError && error.reason === 'AlreadyExists'
