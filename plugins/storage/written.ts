import type { AuditTrail } from '#contracts/audit'
import type { ObjectWrites } from '#contracts/object-writes'
import type { Counter } from './usage.ts'

interface NoteParts {
  /** Undefined: nothing is audited here. */
  readonly trail: AuditTrail | undefined
  readonly counter: Counter | undefined
}

/** What agents wrote: counted for the limits of their tenant, and in its audit log under the run that did it. */
export async function noteWrites(
  { trail, counter }: NoteParts,
  ...[{ tenantId, runId }, writes]: Parameters<ObjectWrites['noted']>
): Promise<void> {
  const bytes = writes.reduce((sum, write) => sum + write.bytes, 0)
  const objects = writes.reduce((sum, write) => sum + write.objects, 0)
  if (bytes !== 0 || objects !== 0) await counter?.add(tenantId, { bytes, objects })
  for (const { action, key } of writes) {
    const entry = await trail?.begin({ tenantId, actor: { keyId: runId, role: 'agent' }, action, target: key })
    if (entry) await trail!.end(entry, { status: action === 'storage.put' ? 200 : 204 })
  }
}
