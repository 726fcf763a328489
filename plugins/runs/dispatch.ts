import { isAppError, unavailable } from '#kernel'
import type { RunDispatch } from '#contracts/runs'
import type { RunService } from './service.ts'

/** The run service for callers in the same kernel: the gateway's view, without a hop. */
export const createDispatch = (service: RunService): RunDispatch => ({
  async start(tenantId, task, signal) {
    const accepted = await service.start(tenantId, task, true)
    return { ...accepted, events: service.follow(tenantId, accepted.runId, 0, signal) }
  },
  follow: (tenantId, runId, afterSeq, signal) => service.follow(tenantId, runId, afterSeq, signal),
  find: (tenantId, runId) =>
    service.find(tenantId, runId).catch((error: unknown) => {
      if (isAppError(error) && error.status === 404) return undefined
      throw error
    }),
  cancel: (tenantId, runId) => service.cancel(tenantId, runId),
  async ping() {
    if (service.closing) throw unavailable({ message: 'This server is stopping.', retryable: true })
  },
})
