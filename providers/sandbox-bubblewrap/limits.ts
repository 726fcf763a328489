import { invalidSandbox, type SandboxResources } from '#contracts/sandbox'

export interface Limits {
  readonly memoryMb: number
  readonly pids: number
  /** Of `/tmp`. */
  readonly diskMb: number
  readonly cpus?: number
}

/** What a sandbox may use: as ordered, or else as this provider is set up. */
export function limitsOf(resources: SandboxResources, byDefault: Limits, canLimitCpus: boolean): Limits {
  const { memoryMb, pids, diskMb, cpus } = resources
  if (cpus !== undefined && !canLimitCpus) {
    throw invalidSandbox(
      "This runner cannot limit cpus: its sandbox provider 'bubblewrap' has no cgroup. Leave cpus out, or give it one.",
    )
  }
  return {
    memoryMb: memoryMb ?? byDefault.memoryMb,
    pids: pids ?? byDefault.pids,
    diskMb: diskMb ?? byDefault.diskMb,
    ...(cpus === undefined ? {} : { cpus }),
  }
}
