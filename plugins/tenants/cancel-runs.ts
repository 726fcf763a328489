import type { FastifyBaseLogger } from 'fastify'
import type { RunStore } from '#contracts/run-store'
import { isTerminal, type RunDispatch, runStatuses } from '#contracts/runs'

/** How many runs are cancelled at once, so that a large tenant does not flood the conductor. */
const together = 50

/**
 * Cancels what a deleted tenant has under way, behind the answer. When it fails the runs end by themselves; new ones cannot
 * start, because no key of the tenant works.
 */
export function createRunCanceller(
  store: Pick<RunStore, 'listRuns'>,
  runs: Pick<RunDispatch, 'cancel'>,
  log: Pick<FastifyBaseLogger, 'warn'>,
  stopping: AbortSignal,
) {
  const under = new Set<Promise<void>>()
  const cancel = async (tenantId: string): Promise<void> => {
    // What waits goes first: the end of a run that executes would let the next one begin.
    for (const status of runStatuses.filter((one) => !isTerminal(one))) {
      while (!stopping.aborted) {
        const { runs: open } = await store.listRuns(tenantId, { status, limit: together })
        if (open.length === 0) break
        await Promise.all(open.map(({ runId }) => runs.cancel(tenantId, runId)))
      }
    }
  }
  return {
    cancelAll(tenantId: string): void {
      const work = cancel(tenantId)
        .catch((err: unknown) => log.warn({ err, tenant: tenantId }, 'runs of a deleted tenant go on to their end'))
        .finally(() => under.delete(work))
      under.add(work)
    },
    async settled(): Promise<void> {
      await Promise.all(under)
    },
  }
}
