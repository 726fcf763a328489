import type { FastifyBaseLogger } from 'fastify'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { Runtime } from '#contracts/runtime'
import { sessionBusy, stateMissing } from './errors.ts'
import { createEventWriter } from './event-writer.ts'
import type { RunMetrics } from './metrics.ts'
import { HostedRun } from './run.ts'

/** The runs under way in this process, at most one per session. */
export interface Runs {
  readonly inflight: number
  busy(sessionId: string): boolean
  accept(envelope: RunEnvelope, name: string, runtime: Runtime): (signal: AbortSignal) => AsyncIterable<Buffer>
  /** Ends every run with an `interrupted` error and waits until they have let go. */
  stop(): Promise<void>
}

export function createRunner(log: FastifyBaseLogger, metrics: RunMetrics): Runs {
  const sessions = new Map<string, HostedRun>()
  const write = createEventWriter()
  let inflight = 0
  return {
    get inflight() {
      return inflight
    },
    busy: (sessionId) => sessions.get(sessionId)?.ended === false,
    accept(envelope, name, runtime) {
      const { sessionId } = envelope
      const former = sessions.get(sessionId)
      if (former && !former.ended) throw sessionBusy()
      if (envelope.resume && runtime.has?.(sessionId) === false) throw stateMissing()
      const run = new HostedRun(envelope, runtime, {
        log,
        write,
        // Its answer is out, but its adapter may still be putting things away: the next one starts after that.
        after: former?.released,
        onEnd(outcome) {
          inflight--
          metrics.ended(name, outcome)
        },
      })
      inflight++
      metrics.started()
      sessions.set(sessionId, run)
      void run.released.then(() => {
        if (sessions.get(sessionId) === run) sessions.delete(sessionId)
      })
      return run.lines
    },
    async stop() {
      const all = [...sessions.values()]
      for (const run of all) run.abort('interrupted')
      await Promise.all(all.map((run) => run.released))
    },
  }
}
