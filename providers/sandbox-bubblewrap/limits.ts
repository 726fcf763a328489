import { invalidSandbox, type SandboxResources } from '#contracts/sandbox'

export interface Limits {
  readonly memoryMb: number
  readonly pids: number
  /** Of `/tmp`. */
  readonly diskMb: number
  readonly cpus?: number
}

/** What this provider gives: to profiles that say nothing, and at most to those that do. */
export interface LimitSettings {
  readonly byDefault: Limits
  readonly most: Limits
}

/** What a sandbox may use: as ordered, or else as this provider is set up. */
export function limitsOf(
  resources: SandboxResources,
  { byDefault, most }: LimitSettings,
  canLimitCpus: boolean,
): Limits {
  const { memoryMb, pids, diskMb, cpus } = resources
  // All of it is the machine's, also what is in /tmp: a profile is a tenant's.
  for (const name of ['memoryMb', 'pids', 'diskMb'] as const) {
    const allowed = Math.max(most[name], byDefault[name])
    if ((resources[name] ?? 0) <= allowed) continue
    throw invalidSandbox(
      `This runner gives a sandbox at most ${allowed} ${name}, and the profile asks for ${resources[name]}.`,
    )
  }
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
