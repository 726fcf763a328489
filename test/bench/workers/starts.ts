import { median } from '../statistics.ts'
import { type Cell, type Dev, until, waiting, warmSize, warmUp } from './dev.ts'
import { eventsOf } from './events.ts'

/** Milliseconds, medians of the rounds. The first event is the first text of the model, from `POST /api/runs` on. */
export interface Starts extends Cell {
  /** A new session whose sandbox, or vendor process, is not there. */
  readonly cold: number
  /** The part of `cold` until the worker had called. Undefined without a sandbox. */
  readonly coldStart: number | undefined
  /** A new session with a prepared worker. */
  readonly warm?: number
  readonly warmStart?: number
  /** Another run of a session whose worker was put to sleep. */
  readonly paused?: number
  readonly pausedStart?: number
  /** Another run of a session at once. */
  readonly again: number
}

interface Run {
  readonly sessionId: string
  readonly firstMs: number
  /** How the sandbox started, as the runner reports it. */
  readonly start: string | undefined
  readonly startMs: number | undefined
}

export async function measureStarts(dev: Dev, cell: Cell, rounds: number): Promise<Starts> {
  const cold: Run[] = []
  const again: Run[] = []
  const paused: Run[] = []
  const warm: Run[] = []
  for (let round = 0; round < rounds; round++) {
    const first = await runOnce(dev, cell.name)
    cold.push(first)
    again.push(await runOnce(dev, cell.name, first.sessionId))
    if (cell.provider) {
      await until(async () => (await stateOf(dev, first.sessionId)) === 'paused', 'a worker asleep')
      paused.push(expect(await runOnce(dev, cell.name, first.sessionId), 'resumed'))
    }
    await dev.call('DELETE', `/api/sessions/${first.sessionId}`)
  }
  if (cell.provider) {
    const name = await warmUp(dev, cell)
    for (let round = 0; round < rounds; round++) {
      await until(async () => (await waiting(dev)) >= warmSize, 'prepared workers')
      const run = expect(await runOnce(dev, name), 'warm')
      warm.push(run)
      await dev.call('DELETE', `/api/sessions/${run.sessionId}`)
    }
    await dev.call('DELETE', `/api/profiles/${name}`)
    await until(async () => (await waiting(dev)) === 0, 'a pool that is empty again')
  }
  return {
    ...cell,
    cold: median(cold.map(({ firstMs }) => firstMs)),
    coldStart: cell.provider ? startOf(cold) : undefined,
    again: median(again.map(({ firstMs }) => firstMs)),
    ...(cell.provider
      ? {
          warm: median(warm.map(({ firstMs }) => firstMs)),
          warmStart: startOf(warm)!,
          paused: median(paused.map(({ firstMs }) => firstMs)),
          pausedStart: startOf(paused)!,
        }
      : {}),
  }
}

const startOf = (runs: readonly Run[]): number => median(runs.flatMap(({ startMs }) => startMs ?? []))

function expect(run: Run, start: string): Run {
  if (run.start !== start) throw new Error(`a run was ${run.start} and should have been ${start}`)
  return run
}

const stateOf = async (dev: Dev, sessionId: string): Promise<string> =>
  (await dev.call<{ state: string }>('GET', `/api/sessions/${sessionId}/worker`)).state

/** Starts a run, follows it to its end, and fails when it does not answer. */
export async function runOnce(dev: Dev, profile: string, sessionId?: string): Promise<Run> {
  const began = performance.now()
  const accepted = await dev.call<{ runId: string; sessionId: string }>('POST', '/api/runs', {
    profile,
    prompt: 'Hello',
    ...(sessionId === undefined ? {} : { sessionId }),
  })
  let firstMs: number | undefined
  let sandbox: Record<string, unknown> | undefined
  for await (const event of eventsOf(dev, accepted.runId)) {
    if (event['type'] === 'assistant') firstMs ??= performance.now() - began
    if (event['stage'] === 'sandbox') sandbox = event
    if (event['type'] === 'error') throw new Error(`a run of ${profile} failed: ${JSON.stringify(event)}`)
  }
  if (firstMs === undefined) throw new Error(`a run of ${profile} said nothing`)
  return {
    sessionId: accepted.sessionId,
    firstMs,
    start: sandbox?.['start'] as string | undefined,
    startMs: sandbox?.['startMs'] as number | undefined,
  }
}
