import { AskedThread } from '#kit/asked-thread'
import type { Question } from './memory-thread.ts'

/** Milliseconds between two looks. The kernel limits each process; this catches many processes that each stay below that limit. */
const everyMs = 1_000
/** One look that fails may be due to a machine that stood still. */
const mostFailures = 2
/** Heap limits in MB, for the file of one process and a list of thousands of numbers. */
const resourceLimits = { maxOldGenerationSizeMb: 24, maxYoungGenerationSizeMb: 1 }

type Thread = Pick<AskedThread<Question, boolean>, 'ask'>

const memoryThread = (): Thread =>
  new AskedThread<Question, boolean>({
    module: new URL('./memory-thread.ts', import.meta.url),
    name: 'sandbox-memory',
    resourceLimits,
    mostWaiting: 1,
    tooMany: () => new Error('the last look is not over'),
    died: (why) => new Error(why === 'memory' ? 'the thread ran out of memory' : 'it took too long'),
  })

/**
 * Ends sandboxes whose processes together exceed their memory. Used where there is no cgroup. Memory that a process shares without mapping it (memfd)
 * is not counted. A sandbox decides how long a look takes: with hundreds of processes that map the same large file it is a second and more. The looks
 * are therefore in a thread, where sandboxes take turns.
 */
export class MemoryWatch {
  readonly #thread: Thread

  constructor(thread: Thread = memoryThread()) {
    this.#thread = thread
  }

  /** Calls `exceeded` once, with the reason. Returns a function that stops watching. */
  watch(root: number, limitMb: number, exceeded: (why: string) => void): () => void {
    let failures = 0
    let over = false
    let timer: NodeJS.Timeout
    const later = (): void => void (timer = setTimeout(look, everyMs).unref())
    const end = (why: string): void => {
      over = true
      exceeded(why)
    }
    const look = (): void => {
      this.#thread.ask(String(root), { root, limitKb: limitMb * 1024 }).then(
        (isAbove) => {
          failures = 0
          if (over) return
          if (isAbove) end('it exceeded its memory limit')
          else later()
        },
        (error: Error) => {
          if (over) return
          // Memory that cannot be measured is not limited either.
          if (++failures === mostFailures) end(`its memory could not be measured: ${error.message}`)
          else later()
        },
      )
    }
    later()
    return () => {
      over = true
      clearTimeout(timer)
    }
  }
}
