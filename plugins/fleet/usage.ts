import type { TenantLimits } from '#contracts/limits'
import type { Fleet, RunnerUsage } from '#contracts/runner'
import { SingleFlight } from '#kit'

/** How long all runners together may take; one that has not answered by then is left out. */
const windowMs = 1_500

/**
 * Tells what a tenant has of the limits that hold on each runner: as much as on the runner where it has most. Those who ask while an
 * answer is on its way share it.
 */
export function tellUsage(limits: TenantLimits, fleet: Pick<Fleet, 'all' | 'describe'>): void {
  const asking = new SingleFlight<readonly RunnerUsage[]>()
  const ask = (tenantId: string) => asking.run(tenantId, () => usageOfAll(fleet, tenantId))
  for (const limit of ['stateBytes', 'sandboxes', 'workspaceBytes'] as const) {
    limits.uses(limit, async (tenantId) => {
      const known = (await ask(tenantId)).flatMap((usage) => usage[limit] ?? [])
      return known.length === 0 ? undefined : Math.max(...known)
    })
  }
}

async function usageOfAll(fleet: Pick<Fleet, 'all' | 'describe'>, tenantId: string): Promise<readonly RunnerUsage[]> {
  const members = fleet.describe()
  const signal = AbortSignal.timeout(windowMs)
  const late = new Promise<undefined>((resolve) => signal.addEventListener('abort', () => resolve(undefined)))
  const present = fleet.all().filter((_, i) => members[i]!.state !== 'unreachable')
  const answers = await Promise.all(
    present.map((link) => Promise.race([link.usage(tenantId, signal).catch(() => undefined), late])),
  )
  return answers.flatMap((usage) => usage ?? [])
}
