// The thread of `MemoryWatch`. It reads /proc, which takes the kernel milliseconds for each process that maps much memory.
import { parentPort } from 'node:worker_threads'
import { read, treeOf } from '../processes.ts'

/** Do the processes from `root` on use more than this together? */
export interface Question {
  readonly root: number
  readonly limitKb: number
  /** After so many milliseconds of the processor the answer is `late`. Others may keep the processor from this thread, so the clock says nothing. */
  readonly mostMs: number
}
export type Answer = 'below' | 'above' | 'late'

async function answerTo({ root, limitKb, mostMs }: Question): Promise<Answer> {
  const end = spentMs() + mostMs
  const pids = await treeOf(root)
  // This cheap sum counts shared memory once per process. The exact sum costs the kernel more and is read only when the cheap sum is too large.
  const cheap = sum(pids, 'status', /^Rss(?:Anon|Shmem):\s+(\d+) kB/gm, end)
  const kb = cheap > limitKb ? sum(pids, 'smaps_rollup', /^Pss_(?:Anon|Shmem):\s+(\d+) kB/gm, end) : cheap
  if (Number.isNaN(kb)) return 'late'
  return kb > limitKb ? 'above' : 'below'
}

/** Milliseconds of the processor that this thread has used. */
function spentMs(): number {
  const { user, system } = process.threadCpuUsage()
  return (user + system) / 1_000
}

/** NaN when the time is over. */
function sum(pids: readonly number[], file: string, pattern: RegExp, end: number): number {
  let kb = 0
  for (const pid of pids) {
    for (const [, amount] of read(`/proc/${pid}/${file}`).matchAll(pattern)) kb += Number(amount)
    if (spentMs() >= end) return NaN
  }
  return kb
}

parentPort!.on('message', (question: Question) => {
  void answerTo(question).then((answer) => parentPort!.postMessage(answer))
})
parentPort!.postMessage('loaded')
