import { mkdir, readFile, rmdir, statfs, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { invalidSandbox, type SandboxResources } from '#contracts/sandbox'
import { retry } from '#kit'

export interface SandboxLimits {
  readonly memoryMb: number
  readonly pids: number
  /** The size of `/tmp`, in MB. */
  readonly diskMb: number
  readonly cpus?: number
}

/** The limits of this provider: the default, and the most that a profile may set. */
export interface LimitSettings {
  readonly byDefault: SandboxLimits
  readonly most: SandboxLimits
}

/** The limits of a sandbox: those of the order, otherwise the provider's defaults. */
export function limitsOf(
  resources: SandboxResources,
  { byDefault, most }: LimitSettings,
  canLimitCpus: boolean,
): SandboxLimits {
  const { memoryMb, pids, diskMb, cpus } = resources
  // A tenant's profile may not exceed what this machine's operator allows. `/tmp` uses memory too.
  for (const name of ['memoryMb', 'pids', 'diskMb'] as const) {
    const allowed = Math.max(most[name], byDefault[name])
    if ((resources[name] ?? 0) <= allowed) continue
    throw invalidSandbox(
      `This runner gives a sandbox at most ${allowed} ${name}, and the profile sets ${resources[name]}.`,
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

/** From linux/magic.h. On any other file system, writing `memory.max` would just create a file. */
const cgroup2 = 0x63677270
/** The period of the CPU quota in microseconds, which is the kernel's default. */
const periodUs = 100_000

/** A cgroup in which this runner may make children, one for each sandbox. */
export interface Cgroups {
  /** Resolves to a function that removes the cgroup once no process runs in it. */
  contain(name: string, pids: readonly number[], limits: SandboxLimits): Promise<() => Promise<void>>
}

/** Opens the cgroup folder. Throws an Error with a sentence when the folder is no cgroup, or lacks controllers that limits need. */
export async function openCgroups(folder: string): Promise<Cgroups> {
  const found = await statfs(folder).catch(() => undefined)
  if (found?.type !== cgroup2) throw new Error(`${folder} is no cgroup of version 2.`)
  const has = async (file: string): Promise<string[]> =>
    (await readFile(join(folder, file), 'utf8')).trim().split(/\s+/)
  const wanted = (await has('cgroup.controllers')).filter((name) => ['memory', 'pids', 'cpu'].includes(name))
  await writeFile(join(folder, 'cgroup.subtree_control'), wanted.map((name) => `+${name}`).join(' ')).catch(() => {})
  const enabled = await has('cgroup.subtree_control')
  const missing = ['memory', 'pids', 'cpu'].filter((name) => !enabled.includes(name))
  if (missing.length > 0) {
    throw new Error(
      `The cgroup ${folder} does not delegate ${missing.join(', ')}: delegate them to this runner, and keep the runner itself in a child of it.`,
    )
  }
  return {
    async contain(name, pids, limits) {
      const child = join(folder, name)
      const set = (file: string, value: string | number): Promise<void> => writeFile(join(child, file), String(value))
      await mkdir(child)
      try {
        await set('memory.max', limits.memoryMb * 1024 * 1024)
        // The file is absent on a kernel without swap.
        await set('memory.swap.max', 0).catch(() => {})
        await set('memory.oom.group', 1)
        await set('pids.max', limits.pids)
        if (limits.cpus !== undefined) await set('cpu.max', `${Math.round(limits.cpus * periodUs)} ${periodUs}`)
        for (const pid of pids) await set('cgroup.procs', pid)
      } catch (error) {
        await removed(child)
        throw error
      }
      return () => removed(child)
    },
  }
}

/** An ended process stays in its cgroup for a moment, so removing is retried. */
const removed = (child: string): Promise<void> =>
  retry(() => rmdir(child), {
    firstMs: 10,
    longestMs: 10,
    most: 100,
    mayPass: (error) => (error as NodeJS.ErrnoException).code !== 'ENOENT',
  }).catch(() => {})
