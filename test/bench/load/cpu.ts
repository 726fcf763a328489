import { usageOf } from '../processes.ts'
import type { Watched } from './targets.ts'

/** CPU of each process in cores, i.e. seconds of CPU per second; empty where this system cannot tell. */
export type Cores = Readonly<Record<string, number>>

/** Starts to count CPU time; the returned function ends the count. */
export function countCores(processes: readonly Watched[]): () => Cores {
  const began = performance.now()
  const before = read(processes)
  return () => {
    const ms = performance.now() - began
    const after = read(processes)
    return Object.fromEntries(
      [...after].map(([name, cpuMs]) => [name, (cpuMs - (before.get(name) ?? cpuMs)) / ms] as const),
    )
  }
}

function read(processes: readonly Watched[]): Map<string, number> {
  const used = new Map<string, number>()
  for (const { name, child } of processes) {
    // PostgreSQL's launcher and all its processes are one.
    const pid = child.pid ?? 0
    const usage = usageOf([pid], [pid])
    if (usage) used.set(name, usage.nodeCpuMs + usage.postgresCpuMs)
  }
  return used
}
