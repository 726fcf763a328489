import { SHARE_ENV, Worker } from 'node:worker_threads'
import type { Heartbeat, HeartbeatOptions } from '#contracts/database'
import type { Heard, Task } from './heartbeat-thread.ts'

/** Heap limits in MB, enough for one client with one statement. */
const resourceLimits = { maxOldGenerationSizeMb: 24, maxYoungGenerationSizeMb: 1 }
/** Milliseconds that an orderly end may take. */
const endMs = 2_000

/** The main thread's side of the heartbeat. A heartbeat thread that fails is replaced at the next pulse. */
export function openHeartbeat(dsn: string, options: HeartbeatOptions): Heartbeat {
  const { renew, everyMs, hungMs, onLost, onFailure } = options
  let thread: Worker | undefined
  let beats = false
  let closed = false

  const start = (): Worker => {
    const workerData: Task = { dsn, renew, everyMs, hungMs }
    // Start the thread without the preloads of this process, which would cost more than the thread itself.
    const started = new Worker(new URL('./heartbeat-thread.ts', import.meta.url), {
      name: 'heartbeat',
      workerData,
      execArgv: [],
      env: SHARE_ENV,
      trackUnmanagedFds: false,
      resourceLimits,
    })
    // The thread does not keep the process alive.
    started.unref()
    started.on('message', (heard: Heard) => {
      beats = heard.what === 'renewed'
      if (heard.what === 'lost') onLost()
      else if (heard.what === 'failed') onFailure(new Error(heard.why))
    })
    started.on('error', onFailure)
    started.once('exit', () => {
      beats = false
      thread = undefined
    })
    return started
  }
  return {
    get beats() {
      return beats
    },
    pulse(values) {
      if (!closed) (thread ??= start()).postMessage(values)
    },
    async close() {
      closed = true
      const ending = thread
      if (!ending) return
      const gone = new Promise((resolve) => ending.once('exit', resolve))
      ending.ref()
      ending.postMessage('end')
      const late = setTimeout(() => void ending.terminate(), endMs)
      await gone
      clearTimeout(late)
    },
  }
}
