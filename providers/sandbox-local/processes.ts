import { readdirSync, readFileSync } from 'node:fs'
import type { Readable } from 'node:stream'
import { setTimeout as wait } from 'node:timers/promises'

/** A fork bomb with a limit of processes is stopped after a few rounds; one without would never be. */
const mostRounds = 200

/**
 * A process and all that descend from it, the oldest first. Where there is no /proc it is the process alone. The files are
 * read at once and not one await after the other: the less happens in between, the truer the list.
 */
export function treeOf(root: number): number[] {
  const tree = [root]
  for (const pid of tree) tree.push(...childrenOf(pid))
  return tree
}

function childrenOf(pid: number): number[] {
  try {
    return readdirSync(`/proc/${pid}/task`).flatMap((thread) =>
      // A thread that ends while we read takes no child along: its children are then the process's.
      read(`/proc/${pid}/task/${thread}/children`).split(' ').filter(Boolean).map(Number),
    )
  } catch {
    return []
  }
}

/** Sends a signal to each; those that have ended are no failure. */
export function signalTree(pids: readonly number[], signal: NodeJS.Signals): void {
  for (const pid of pids) {
    try {
      process.kill(pid, signal)
    } catch {
      // It has ended.
    }
  }
}

/**
 * Stops (SIGSTOP) a process and all that descend from it, and resolves when none runs. A process that forked while the list was
 * read may have a child that is not in it, so the list is read again until it has shown nothing new twice.
 */
export async function stopTree(root: number): Promise<void> {
  const stopped = new Set<number>()
  for (let round = 0, quiet = 0; quiet < 2; round++) {
    if (round === mostRounds) throw new Error(`The processes under ${root} cannot be stopped.`)
    const fresh = treeOf(root).filter((pid) => !stopped.has(pid))
    signalTree(fresh, 'SIGSTOP')
    for (const pid of fresh) stopped.add(pid)
    const still = fresh.length === 0 && [...stopped].every(standsStill)
    quiet = still ? quiet + 1 : 0
    if (!still) await wait(1)
  }
}

/** The state is the first letter behind the name, which may hold anything. D: it waits in the kernel, and stops on its way out. */
const standsStill = (pid: number): boolean => {
  const stat = read(`/proc/${pid}/stat`)
  return stat === '' || /^[TtZXD]/.test(stat.slice(stat.lastIndexOf(')') + 2))
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

/** How much output is kept for the log: enough for the stack of an error. */
const keptBytes = 4 * 1024
/** A worker that prints more has to wait: reading must not keep the runner busy. Its own log is far below. */
const bytesPerSecond = 256 * 1024

/** Reads what a process prints and keeps the end of it. */
export function tailOf(streams: readonly (Readable | null)[]): () => string {
  let tail = Buffer.alloc(0)
  for (const stream of streams) {
    let read = 0
    stream?.on('data', (chunk: Buffer) => {
      tail = Buffer.concat([tail, chunk]).subarray(-keptBytes)
      read += chunk.length
      if (read < bytesPerSecond) return
      read = 0
      stream.pause()
      setTimeout(() => stream.resume(), 1_000).unref()
    })
    // A failure of the pipe only means that the process has ended.
    stream?.on('error', () => {})
  }
  return () => tail.toString('utf8').trim()
}
