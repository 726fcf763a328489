import type { FastifyBaseLogger } from 'fastify'
import type { E2bApi } from './api.ts'
import { isConflict, isNotFound } from './errors.ts'

export interface KeepAlive {
  /** This sandbox is used from now on. */
  add(sandboxId: string): void
  delete(sandboxId: string): void
  stop(): void
}

export interface KeepAliveOptions {
  readonly api: Pick<E2bApi, 'setTimeout'>
  readonly timeoutSeconds: number
  readonly log: FastifyBaseLogger
}

/** Puts off the end of sandboxes while this process uses them. When it dies, E2B pauses them at their time. */
export function createKeepAlive({ api, timeoutSeconds, log }: KeepAliveOptions): KeepAlive {
  const used = new Set<string>()
  const extend = async (sandboxId: string): Promise<void> => {
    try {
      await api.setTimeout(sandboxId, timeoutSeconds)
    } catch (err) {
      // Gone, or paused by somebody else. A sandbox that reached the longest life of its account is tried in vain until then.
      if (isNotFound(err) || isConflict(err)) used.delete(sandboxId)
      else log.warn({ err, sandboxId }, 'the time of a sandbox could not be extended')
    }
  }
  // Two may fail before the time is over.
  const timer = setInterval(() => used.forEach((id) => void extend(id)), (timeoutSeconds * 1_000) / 3).unref()
  return {
    add: (sandboxId) => void used.add(sandboxId),
    delete: (sandboxId) => void used.delete(sandboxId),
    stop: () => clearInterval(timer),
  }
}
