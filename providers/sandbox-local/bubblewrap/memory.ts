import { AskedThread } from '#kit/asked-thread'
import type { Answer, Question } from './memory-thread.ts'

/** Milliseconds between two looks. The kernel limits each process; this catches many processes that each stay below that limit. */
const everyMs = 1_000
/** Milliseconds of the processor that a look may take. With a thousand processes whose cheap sum is below the limit it is some 30. */
const lookMs = 1_000
/**
 * Milliseconds that a look may wait. It waits for those of the same tenant, which has one at a time, and little for those of others. Meanwhile the
 * sandbox may use any memory.
 */
const waitMs = 10_000
/** One look that fails may be due to a machine that stood still. */
const mostFailures = 2
/** Heap limits in MB, for the file of one process and a list of thousands of numbers. */
const resourceLimits = { maxOldGenerationSizeMb: 24, maxYoungGenerationSizeMb: 1 }

type Thread = Pick<AskedThread<Question, Answer>, 'ask'>

const memoryThread = (): Thread =>
  new AskedThread<Question, Answer>({
    module: new URL('./memory-thread.ts', import.meta.url),
    name: 'sandbox-memory',
    resourceLimits,
    // Each sandbox has one look at a time.
    mostWaiting: Infinity,
    tooMany: () => new Error('too many looks wait'),
    died: (why) => new Error(why === 'memory' ? 'the thread ran out of memory' : 'it took too long'),
  })

interface Watched {
  readonly tenantId: string
  /** The first process, from which all others descend. */
  readonly root: number
  readonly limitMb: number
}

/**
 * Ends sandboxes whose processes together exceed their memory. Used where there is no cgroup. Memory that a process shares without mapping it (memfd)
 * is not counted. A sandbox decides how long a look takes: with hundreds of processes that map the same large file it is a second and more. The looks
 * are therefore in a thread, where tenants take turns, and a sandbox whose memory cannot be told in time is ended: what cannot be measured is not
 * limited either.
 */
export class MemoryWatch {
  readonly #thread: Thread

  constructor(thread: Thread = memoryThread()) {
    this.#thread = thread
  }

  /** Calls `exceeded` once, with the reason. Returns a function that stops watching. */
  watch({ tenantId, root, limitMb }: Watched, exceeded: (why: string) => void): () => void {
    let failures = 0
    let over = false
    let timer: NodeJS.Timeout
    const later = (): void => void (timer = setTimeout(look, everyMs).unref())
    const end = (why: string): void => {
      over = true
      exceeded(why)
    }
    const failed = (why: string): void => {
      if (!over && ++failures === mostFailures) end(`its memory could not be measured: ${why}`)
    }
    const look = (): void => {
      const waiting = setInterval(() => failed('it waited too long for its turn'), waitMs).unref()
      const told = (how: () => void): void => {
        clearInterval(waiting)
        how()
        if (!over) later()
      }
      this.#thread.ask(tenantId, { root, limitKb: limitMb * 1024, mostMs: lookMs }).then(
        (answer) =>
          told(() => {
            if (answer === 'late') return failed('it took too long')
            failures = 0
            if (answer === 'above' && !over) end('it exceeded its memory limit')
          }),
        (error: Error) => told(() => failed(error.message)),
      )
    }
    later()
    return () => {
      over = true
      clearTimeout(timer)
    }
  }
}
