import { type PerformanceEntry, PerformanceObserver } from 'node:perf_hooks'
import { Histogram, type Registry } from 'prom-client'

/** How often the loop is looked at, in milliseconds; what takes less than this may be missed, and so much of a longer step. */
const everyMs = 5
/** The same while the loop has next to nothing to do: waking up two hundred times a second was most of what an idle process cost. */
const restMs = 25
/** The part of its time that a loop at rest is busy, at most. */
const mostAtRest = 0.25
/** Steps that kept the loop for less are not told. */
const leastMs = 10
/** Pauses of the garbage collector that are remembered. */
const mostPauses = 256

/** What the event loop did without turning once. */
export interface Step {
  /**
   * What it took of this thread's processor at least, in milliseconds, pauses of the garbage collector aside. A process that had
   * to wait for the processor, or slept, took nothing.
   */
  readonly cpuMs: number
  /** What the last `look` before it said. */
  readonly during: string | undefined
}

interface LoopTold {
  /** How late a look was, in milliseconds, whyever. */
  looked?(lateMs: number): void
  /** A step is over that kept the loop for 10 ms or more. Told some turns later. */
  stepped(step: Step): void
}

interface Pause {
  readonly from: number
  readonly to: number
}

/**
 * Looks at the event loop of this thread every few milliseconds. A look that is late had to wait for a step, for the collector or for
 * the machine: the clock of the thread tells which. So a long step is found on a machine that is busy with other things, too. Of a loop
 * at rest the loop itself says for how long it has worked since the last look.
 */
export class LoopWatch {
  readonly #told: LoopTold
  readonly #collector = new PerformanceObserver((list) => this.#remember(list.getEntries()))
  #pauses: Pause[] = []
  #timer: NodeJS.Timeout | undefined
  #dueMs = everyMs
  #at = 0
  #loop = performance.eventLoopUtilization()
  /** What the thread has taken of a processor, and when that was. */
  #cpuMs = 0
  #during: string | undefined

  constructor(told: LoopTold) {
    this.#told = told
  }

  start(): void {
    this.#collector.observe({ entryTypes: ['gc'] })
    this.#begin()
    this.#arm(everyMs)
  }
  stop(): void {
    clearTimeout(this.#timer)
    this.#collector.disconnect()
  }

  /** What was done since the last look is one step at most; what is done from now on is done during `during`. */
  look(during?: string): void {
    const from = this.#at
    const cpu = this.#cpuMs
    const before = this.#loop
    this.#begin()
    const { active, utilization } = performance.eventLoopUtilization(this.#loop, before)
    const lateMs = Math.max(0, (this.#dueMs === restMs ? active : this.#at - from) - everyMs)
    this.#told.looked?.(lateMs)
    if (lateMs >= leastMs)
      this.#judge({ from, to: this.#at }, { lateMs, cpuMs: this.#cpuMs - cpu, during: this.#during })
    this.#during = during
    this.#arm(during === undefined && utilization < mostAtRest ? restMs : everyMs)
  }

  #arm(ms: number): void {
    if (this.#timer && ms === this.#dueMs) return void this.#timer.refresh()
    clearTimeout(this.#timer)
    this.#dueMs = ms
    this.#timer = setTimeout(() => this.look(this.#during), ms).unref()
  }
  #begin(): void {
    const { user, system } = process.threadCpuUsage()
    this.#cpuMs = (user + system) / 1_000
    this.#at = performance.now()
    this.#loop = performance.eventLoopUtilization()
  }

  /** The collector's pauses are told to JavaScript when the loop has turned: until then a step cannot be judged. */
  #judge(span: Pause, { lateMs, cpuMs, during }: Step & { readonly lateMs: number }): void {
    setImmediate(() =>
      setImmediate(() => {
        this.#remember(this.#collector.takeRecords())
        let pausedMs = 0
        // They are in order of their ends.
        for (let i = this.#pauses.length - 1; i >= 0 && this.#pauses[i]!.to > span.from; i--)
          pausedMs += overlapMs(this.#pauses[i]!, span)
        // Of a look that was only a little late most was done in turns before.
        const own = Math.min(lateMs, cpuMs - pausedMs)
        if (own >= leastMs) this.#told.stepped({ cpuMs: own, during })
      }),
    )
  }
  #remember(entries: readonly PerformanceEntry[]): void {
    const pauses = entries.map(({ startTime, duration }) => ({ from: startTime, to: startTime + duration }))
    this.#pauses = [...this.#pauses, ...pauses].slice(-mostPauses)
  }
}

const overlapMs = (a: Pause, b: Pause): number => Math.max(0, Math.min(a.to, b.to) - Math.max(a.from, b.from))

// No step of a request may take longer than 50 ms: what is beyond is somebody's bug, and told apart by how bad it is.
const delays = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]
const steps = [0.025, 0.05, 0.06, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30]

/**
 * Shows how long the event loop kept everybody waiting, and with what, since the process began. The figures of prom-client begin anew
 * with each scrape: of two scrapers each sees half, and a step that runs across a scrape is in neither. Returns how to stop.
 */
export function recordEventLoop(metrics: Registry): () => void {
  const registers = [metrics]
  const late = new Histogram({
    name: 'agent_orc_event_loop_delay_seconds',
    help: 'Delay of the event loop, sampled every 5 ms, or every 25 ms at rest. A long step is one long delay.',
    buckets: delays,
    registers,
  })
  const own = new Histogram({
    name: 'agent_orc_event_loop_step_cpu_seconds',
    help: 'CPU time of steps that held the event loop for 10 ms or more, without garbage collection.',
    buckets: steps,
    registers,
  })
  const watch = new LoopWatch({
    looked: (lateMs) => late.observe(lateMs / 1_000),
    stepped: ({ cpuMs }) => own.observe(cpuMs / 1_000),
  })
  watch.start()
  return () => watch.stop()
}
