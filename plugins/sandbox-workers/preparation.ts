import type { RunnerSession } from '#contracts/runner'
import type { PreparedRun } from '#contracts/workers'
import { sessionStateMissing } from './errors.ts'
import type { Metrics } from './metrics.ts'
import type { WorkerTable } from './table.ts'
import { unlessAborted } from './waiting.ts'
import type { SessionWorker, Start, Started } from './worker.ts'

/** Makes a session's sandbox ready for a run, and says what it used since the former one. */
export async function prepareRun(
  table: WorkerTable,
  session: RunnerSession,
  resume: boolean,
  signal: AbortSignal,
  metrics: Metrics,
): Promise<PreparedRun | undefined> {
  if (session.profile.workerMode !== 'sandbox') return underWay(table.find(session.tenantId, session.id))
  const worker = table.of(session)
  // Known before a sandbox is started in vain.
  if (resume && !worker.sandbox && !worker.state) throw sessionStateMissing()
  const leave = worker.uses.use()
  try {
    const awakeMs = worker.awake.ms
    const started = await unlessAborted(worker.ready(), signal)
    metrics.started(started)
    return prepared(worker, started, awakeMs, leave)
  } catch (error) {
    if (!signal.aborted) metrics.failed()
    leave()
    throw error
  }
}

/** A sandbox that only tools use is started by them. */
function underWay(worker: SessionWorker | undefined): PreparedRun | undefined {
  if (!worker?.sandbox || worker.phase !== 'awake') return undefined
  const { sandbox, awake } = worker
  return prepared(worker, { sandbox, start: 'running', startMs: 0 }, awake.ms, worker.uses.use())
}

function prepared(
  worker: SessionWorker,
  { sandbox, start, startMs }: Started,
  awakeMs: number,
  leave: () => void,
): PreparedRun {
  worker.awake.settle()
  const message = sentences[start]
  let isOver = false
  return {
    event: {
      type: 'progress',
      stage: 'sandbox',
      provider: sandbox.substrate.name,
      start,
      startMs,
      idleSeconds: Math.round(awakeMs / 1_000),
      ...(message === undefined ? {} : { message }),
    },
    over() {
      if (isOver) return
      isOver = true
      // The time of a run is the run's.
      worker.awake.settle()
      leave()
    },
  }
}

const sentences: Readonly<Record<Start, string | undefined>> = {
  launched: 'A sandbox was started.',
  warm: 'A sandbox was ready.',
  resumed: 'The sandbox was woken up.',
  running: undefined,
}
