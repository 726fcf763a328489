import { Histogram, type Registry } from 'prom-client'
import { LoopWatch } from './loop-watch.ts'

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
    help: 'How late the event loop was when it was looked at, every 5 ms that it was free: a long step is one long delay.',
    buckets: delays,
    registers,
  })
  const own = new Histogram({
    name: 'agent_orc_event_loop_step_cpu_seconds',
    help: 'What steps that kept the event loop for 10 ms or more took of its processor, garbage collection aside.',
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
