import type { TenantLimits } from '#contracts/limits'
import type { VfsClient, VfsUsage } from '#contracts/vfs'

/** How long the server may take; then nothing is said of these limits. */
const withinMs = 1_500

/** Tells what a tenant uses of its limits on the VirtualFS server. Those who ask while an answer is on its way share it. */
export function tellUsage(limits: TenantLimits, client: Pick<VfsClient, 'usage'>): void {
  const asked = new Map<string, Promise<VfsUsage | undefined>>()
  const ask = (tenantId: string): Promise<VfsUsage | undefined> => {
    const signal = AbortSignal.timeout(withinMs)
    const asking =
      asked.get(tenantId) ??
      client
        .usage(tenantId, { signal })
        .catch(() => undefined)
        .finally(() => asked.delete(tenantId))
    asked.set(tenantId, asking)
    return asking
  }
  limits.uses('vfsBytes', async (tenantId) => (await ask(tenantId))?.bytes)
  limits.uses('vfsEntries', async (tenantId) => (await ask(tenantId))?.entries)
  limits.uses('vfsSessions', async (tenantId) => (await ask(tenantId))?.sessions)
}
