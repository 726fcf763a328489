import { readFileSync } from 'node:fs'
import { treeOf } from '#local-sandboxes'

/** The kernel bounds each process at once; this is for many that keep below that together. */
const everyMs = 1_000

/**
 * Calls `exceeded` once when the processes of a sandbox together hold more memory than they may. Stands in for a cgroup. What
 * a process shares without mapping it (memfd) is not seen.
 */
export function watchMemory(root: number, limitMb: number, exceeded: () => void): () => void {
  const limitKb = limitMb * 1024
  const timer = setInterval(() => {
    const pids = treeOf(root)
    // What processes share is counted for each of them here, and exactly only when it matters: that costs the kernel more.
    if (sum(pids, 'status', /^Rss(?:Anon|Shmem):\s+(\d+) kB/gm) <= limitKb) return
    if (sum(pids, 'smaps_rollup', /^Pss_(?:Anon|Shmem):\s+(\d+) kB/gm) <= limitKb) return
    clearInterval(timer)
    exceeded()
  }, everyMs)
  timer.unref()
  return () => clearInterval(timer)
}

function sum(pids: readonly number[], file: string, pattern: RegExp): number {
  let kb = 0
  for (const pid of pids) for (const [, amount] of read(`/proc/${pid}/${file}`).matchAll(pattern)) kb += Number(amount)
  return kb
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    // It has ended.
    return ''
  }
}
