import { setTimeout as sleep } from 'node:timers/promises'
import type { RunJob } from '../load-client.ts'
import { complain } from '../measure.ts'
import { quantile } from '../statistics.ts'
import { type Cores, countCores } from './cpu.ts'
import type { LoadTarget, Watched } from './targets.ts'

/** `POST /api/runs` at a steady rate. Times in ms, from when the request was due until its whole answer was read. */
export interface RunsSample {
  readonly p50: number
  readonly p99: number
  readonly worst: number
  /** How late the client itself was with sending, which is part of the times above. */
  readonly lagP99: number
  readonly sent: number
  readonly errors: number
  readonly cores: Cores
}

/** More requests are never under way unless the target has stalled; then they wait in the client, and the wait counts. */
const connections = 64
const warmMs = 2_000
/** How long accepted runs may take to end. */
const endMs = 60_000

export interface RunsLoad {
  readonly rate: number
  readonly ms: number
  /** The client, the model and all else that shares the machine. */
  readonly others: readonly Watched[]
}

export async function measureRuns(run: RunJob, target: LoadTarget, load: RunsLoad): Promise<RunsSample> {
  const { runs } = target
  if (!runs) throw new Error(`${target.name} starts no runs`)
  const job = {
    requests: runs.urls.map((origin) => ({
      origin,
      path: '/api/runs',
      headers: { authorization: `Bearer ${runs.key}` },
    })),
    body: JSON.stringify({ profile: runs.profile, prompt: 'Hello' }),
    format: 'accepted' as const,
    clients: connections,
    expect: {},
    perSecond: load.rate,
  }
  const before = await endedWell(target)
  const warm = await run({ ...job, durationMs: warmMs })
  const count = countCores([...target.processes, ...load.others])
  const result = await run({ ...job, durationMs: load.ms })
  const cores = count()
  complain(target, 'POST /api/runs', result)
  const accepted = warm.chats + result.chats
  const lost = await notWell(target, before, accepted)
  if (lost > 0) process.stderr.write(`\n!! ${target.name}: ${lost} of ${accepted} accepted runs did NOT end well\n`)
  return {
    p50: quantile(result.totalMs, 0.5),
    p99: quantile(result.totalMs, 0.99),
    worst: Math.max(...result.totalMs),
    lagP99: quantile(result.lagMs, 0.99),
    sent: result.chats + result.errors,
    errors: warm.errors + result.errors + lost,
    cores,
  }
}

/** How many of the runs that were accepted since `before` are not `ok` in the end. The bare server executes none. */
async function notWell(target: LoadTarget, before: number, accepted: number): Promise<number> {
  if (target.name === 'insert') return 0
  for (let left = endMs / 250; left > 0; left--) {
    if ((await endedWell(target)) - before === accepted) return 0
    await sleep(250)
  }
  return accepted - ((await endedWell(target)) - before)
}

async function endedWell({ name, runs }: LoadTarget): Promise<number> {
  if (name === 'insert') return 0
  const headers = { authorization: `Bearer ${runs?.key}` }
  const response = await fetch(`${runs?.urls[0]}/api/stats/overview?window=24h`, { headers })
  return ((await response.json()) as { runs: { ok: number } }).runs.ok
}
