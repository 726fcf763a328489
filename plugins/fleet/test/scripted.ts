import { pino } from 'pino'
import { AppError } from '#kernel'
import type { ExecuteRun, RunnerInfo, RunnerLink } from '#contracts/runner'
import { RunnerFleet } from '../fleet.ts'

export const silent = pino({ level: 'silent' })

/** A runner that says what a test wants, without a wire. */
export interface Scripted {
  readonly link: RunnerLink
  info: Partial<RunnerInfo>
  away: boolean
  probes: number
}

export function scripted(hash: string, info: Partial<RunnerInfo> = {}): Scripted {
  const runner: Scripted = {
    info,
    away: false,
    probes: 0,
    link: {
      hash,
      async info() {
        runner.probes++
        if (runner.away) throw new AppError('runner_unreachable', 503, { retryable: true })
        return {
          hash,
          instance: 'i-1',
          capabilities: [],
          capabilitiesKnown: true,
          substrates: [],
          substratesKnown: true,
          ...runner.info,
        }
      },
      async *execute(_tenantId: string, _run: ExecuteRun, signal: AbortSignal) {
        yield Buffer.from('{}\n')
        if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))
      },
    } as unknown as RunnerLink,
  }
  return runner
}

/** A fleet whose runners are only asked when a test says so. */
export function scriptedFleet(...runners: readonly Scripted[]): RunnerFleet {
  const fleet = new RunnerFleet({ intervalMs: 3_600_000, log: silent })
  for (const [i, { link }] of runners.entries()) fleet.add(link, `http://runner-${i}`)
  return fleet
}

export const probeAll = async (fleet: RunnerFleet): Promise<void> => {
  await Promise.all(fleet.members().map((member) => member.probe()))
}
