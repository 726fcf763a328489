import { readdirSync, readFileSync } from 'node:fs'
import type { Readable } from 'node:stream'
import { setImmediate as turn, setTimeout as wait } from 'node:timers/promises'

/** Rounds after which stopping gives up. A fork bomb with a process limit is stopped after a few rounds; one without a limit would never be. */
const mostRounds = 200

/** Milliseconds of reading without a turn for others. A sandbox may have thousands of processes. */
const sliceMs = 10

/** For loops that read: gives others a turn whenever a slice is over. */
function slices(): () => Promise<void> {
  let began = performance.now()
  return async () => {
    if (performance.now() - began < sliceMs) return
    await turn()
    began = performance.now()
  }
}

/**
 * A process and all its descendants, oldest first. Without /proc it is the process alone. Each file is read synchronously, because the less
 * happens in between, the more accurate the list is.
 */
export async function treeOf(root: number): Promise<number[]> {
  const slice = slices()
  const tree = [root]
  for (const pid of tree) {
    for (const thread of threadsOf(pid)) {
      // A thread may end during the reading. Its children then belong to the process, so none is lost.
      tree.push(...read(`/proc/${pid}/task/${thread}/children`).split(' ').filter(Boolean).map(Number))
      await slice()
    }
  }
  return tree
}

function threadsOf(pid: number): string[] {
  try {
    return readdirSync(`/proc/${pid}/task`)
  } catch {
    return []
  }
}

/** Sends a signal to each process. A process that has already ended is no failure. */
export function signalTree(pids: readonly number[], signal: NodeJS.Signals): void {
  for (const pid of pids) {
    try {
      process.kill(pid, signal)
    } catch {
      // The process has ended.
    }
  }
}

/**
 * Stops (SIGSTOP) a process and all its descendants, and resolves when none runs. A process that forks while the list is read may have a child that
 * is missing from the list, so the list is read until it has shown nothing new twice.
 */
export async function stopTree(root: number): Promise<void> {
  const stopped = new Set<number>()
  for (let round = 0, quiet = 0; quiet < 2; round++) {
    if (round === mostRounds) throw new Error(`The processes under ${root} cannot be stopped.`)
    const fresh = (await treeOf(root)).filter((pid) => !stopped.has(pid))
    signalTree(fresh, 'SIGSTOP')
    for (const pid of fresh) stopped.add(pid)
    const still = fresh.length === 0 && (await allStandStill(stopped))
    quiet = still ? quiet + 1 : 0
    if (!still) await wait(1)
  }
}

async function allStandStill(pids: Iterable<number>): Promise<boolean> {
  const slice = slices()
  for (const pid of pids) {
    if (!standsStill(pid)) return false
    await slice()
  }
  return true
}

/**
 * The state is the first letter after the name, which may contain any character. D: the process waits in the kernel, and stops when it leaves the
 * kernel.
 */
const standsStill = (pid: number): boolean => {
  const stat = read(`/proc/${pid}/stat`)
  return stat === '' || /^[TtZXD]/.test(stat.slice(stat.lastIndexOf(')') + 2))
}

/** A file of /proc; empty when its process has ended. */
export function read(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

/** Bytes of output that are kept for the log, enough for the stack of an error. */
const keptBytes = 4 * 1024
/** A worker that prints more must wait, so that reading does not keep the runner busy. The worker's own log stays far below this. */
const bytesPerSecond = 256 * 1024

/** Reads the output of a process and keeps its last bytes. */
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
