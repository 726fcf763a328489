import type { FastifyBaseLogger } from 'fastify'
import type { KubernetesApi } from './api.ts'
import { isNotFound } from './errors.ts'

/** Sandboxes of this process, which Kubernetes deletes by itself some time after nobody puts that off any more. */
export interface Lifetimes {
  /** When a sandbox ends that is not renewed from now on. */
  end(): string
  add(sandboxId: string): void
  delete(sandboxId: string): void
  stop(): void
}

export interface LifetimeOptions {
  readonly api: Pick<KubernetesApi, 'patch'>
  readonly lifetimeMs: number
  readonly log: FastifyBaseLogger
}

export function createLifetimes({ api, lifetimeMs, log }: LifetimeOptions): Lifetimes {
  const ours = new Set<string>()
  const renew = async (sandboxId: string): Promise<void> => {
    try {
      await api.patch(sandboxId, { shutdownTime: lifetimes.end() })
    } catch (err) {
      if (isNotFound(err)) ours.delete(sandboxId)
      else log.warn({ err, sandboxId }, 'the end of a sandbox could not be put off')
    }
  }
  // Two may fail before the time is over.
  const timer = setInterval(() => ours.forEach((id) => void renew(id)), lifetimeMs / 3).unref()
  const lifetimes: Lifetimes = {
    // Whole seconds, as Kubernetes writes times.
    end: () => new Date(Date.now() + lifetimeMs).toISOString().replace(/\.\d+Z$/, 'Z'),
    add: (sandboxId) => void ours.add(sandboxId),
    delete: (sandboxId) => void ours.delete(sandboxId),
    stop: () => clearInterval(timer),
  }
  return lifetimes
}
