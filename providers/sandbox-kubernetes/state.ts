import type { SandboxState } from '#contracts/sandbox'
import type { SandboxObject } from './api.ts'

/** What a condition says of the object as it is now; one about an earlier form of it says nothing. */
function condition({ metadata, status }: SandboxObject, type: string): boolean | undefined {
  const found = status?.conditions?.find((one) => one.type === type)
  if (!found) return undefined
  const { observedGeneration, status: value } = found
  if (observedGeneration !== undefined && metadata.generation !== undefined) {
    if (observedGeneration < metadata.generation) return undefined
  }
  return value === 'True'
}

export function stateOf(sandbox: SandboxObject): SandboxState {
  if (sandbox.metadata.deletionTimestamp !== undefined) return 'gone'
  if (sandbox.spec.operatingMode === 'Suspended') return 'paused'
  // The worker ended by itself; its pod is not started again.
  if (condition(sandbox, 'Finished')) return 'gone'
  return condition(sandbox, 'Ready') ? 'running' : 'starting'
}

/** Suspended, and its pod is gone: not only asked to be. */
export const isSuspended = (sandbox: SandboxObject): boolean =>
  sandbox.spec.operatingMode === 'Suspended' && condition(sandbox, 'Suspended') === true
