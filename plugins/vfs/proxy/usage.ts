import type { TenantLimits } from '#contracts/limits'
import type { VfsClient, VfsUsage } from '#contracts/vfs'
import { SingleFlight } from '#kit'

/** How long the server may take over what a tenant uses; then nothing is said of these limits. */
const usageMs = 1_500

/** Tells what a tenant uses of its limits on the VirtualFS server. Those who ask while an answer is on its way share it. */
export function tellUsage(limits: TenantLimits, client: Pick<VfsClient, 'usage'>): void {
  const asking = new SingleFlight<VfsUsage | undefined>()
  const ask = (tenantId: string) =>
    asking.run(tenantId, () => client.usage(tenantId, { signal: AbortSignal.timeout(usageMs) }).catch(() => undefined))
  limits.uses('vfsBytes', async (tenantId) => (await ask(tenantId))?.bytes)
  limits.uses('vfsEntries', async (tenantId) => (await ask(tenantId))?.entries)
  limits.uses('vfsSessions', async (tenantId) => (await ask(tenantId))?.sessions)
}
