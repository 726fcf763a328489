// The thread of `MemoryWatch`. It reads /proc, which takes the kernel milliseconds for each process that maps much memory.
import { parentPort } from 'node:worker_threads'
import { read, treeOf } from '../processes.ts'

/** Do the processes from `root` on use more than this together? */
export interface Question {
  readonly root: number
  readonly limitKb: number
}

async function answerTo({ root, limitKb }: Question): Promise<boolean> {
  const pids = await treeOf(root)
  // This cheap sum counts shared memory once per process. The exact sum costs the kernel more and is read only when the cheap sum is too large.
  if (sum(pids, 'status', /^Rss(?:Anon|Shmem):\s+(\d+) kB/gm) <= limitKb) return false
  return sum(pids, 'smaps_rollup', /^Pss_(?:Anon|Shmem):\s+(\d+) kB/gm) > limitKb
}

function sum(pids: readonly number[], file: string, pattern: RegExp): number {
  let kb = 0
  for (const pid of pids) for (const [, amount] of read(`/proc/${pid}/${file}`).matchAll(pattern)) kb += Number(amount)
  return kb
}

parentPort!.on('message', (question: Question) => {
  void answerTo(question).then((answer) => parentPort!.postMessage(answer))
})
parentPort!.postMessage('loaded')
