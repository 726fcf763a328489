import { readFileSync } from 'node:fs'
import { processesBelow } from '../processes.ts'
import { type Dev, type Provider, until } from './dev.ts'
import { runOnce } from './starts.ts'

export interface MemoryFigures {
  readonly provider: Provider
  /** MiB (PSS) of one idle worker that has answered once, with everything in its sandbox. */
  readonly pssMb: number
  readonly workers: number
}

/** Workers of `general` side by side; the growth of the tree below the service, divided by their number. */
export async function measureMemory(dev: Dev, provider: Provider, workers: number): Promise<MemoryFigures> {
  // Workers of an earlier measurement take a moment to end.
  await until(async () => workersOf(dev.pid) === 0, 'a service without workers')
  const before = pssOf(dev.pid)
  const runs = []
  for (let i = 0; i < workers; i++) runs.push(await runOnce(dev, `general-${provider}`))
  const pssMb = (pssOf(dev.pid) - before) / workers
  for (const { sessionId } of runs) await dev.call('DELETE', `/api/sessions/${sessionId}`)
  await until(async () => (await dev.call<unknown[]>('GET', '/api/worker/leases')).length === 0, 'no worker left')
  return { provider, pssMb, workers }
}

/** Counts the workers below `root`. */
const workersOf = (root: number): number =>
  [...processesBelow(root)].filter((pid) => read(`/proc/${pid}/cmdline`).includes('worker.yaml')).length

/** Empty when the process has ended meanwhile. */
function read(path: string): string {
  try {
    return readFileSync(path, 'latin1')
  } catch {
    return ''
  }
}

/** PSS of the processes below `root`, without `root`: the service itself grows for other reasons. */
function pssOf(root: number): number {
  let total = 0
  for (const pid of processesBelow(root)) {
    total += Number(/^Pss:\s+(\d+)/m.exec(read(`/proc/${pid}/smaps_rollup`))?.[1] ?? 0) / 1_024
  }
  return total
}
