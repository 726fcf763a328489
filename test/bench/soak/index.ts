// `npm run soak`: the service under a steady mix of everything people do with it, to see whether anything grows that should
// not. Fails on growth of memory or of handles, on anything left behind, and on any answer that is not the right one.
import { setTimeout as sleep } from 'node:timers/promises'
import { runCommand, say, withProcesses } from '../command.ts'
import type { Processes } from '../processes.ts'
import type { Member } from '../cluster.ts'
import { startLoad } from './load.ts'
import { type Options, readOptions, usage } from './options.ts'
import { startReceiver } from './receiver.ts'
import { judgeAll, type Outcome, summary, table } from './report.ts'
import { startService } from './service.ts'
import { startWatch } from './watch.ts'

const sampleMs = 15_000
const progressMs = 30_000

async function soak(options: Options, processes: Processes): Promise<Outcome> {
  say('starting')
  const receiver = await startReceiver()
  processes.onStop(() => receiver.stop())
  const { cluster, usesRedis, world: worldOf } = await startService(processes, receiver)
  if (!usesRedis) say('no redis-server on the PATH: one gateway and one conductor, everything in memory')
  const world = await worldOf(options.seed)
  const watch = await startWatch(cluster.members)
  const began = performance.now()
  const passed = (): number => performance.now() - began
  const durationMs = options.minutes * 60_000
  const load = startLoad(world, options.rate, durationMs)
  const progress = setInterval(() => {
    const { begun, underWay, errors } = load
    say(
      `${Math.round(passed() / 1000)} s: ${begun} stories, ${underWay} under way, ${errors} errors; heap MiB: ${watch.latest()}`,
    )
  }, progressMs)
  let early = options.snapshots
  try {
    // Samples are taken by the clock, because collecting garbage may take long. The last one is taken under load.
    for (let n = 1; n * sampleMs < durationMs; n++) {
      await sleep(Math.max(0, n * sampleMs - passed()))
      await watch.sample(passed() / 60_000)
      if (early !== undefined && passed() >= durationMs / 3) {
        await watch.snapshots(early, 'early')
        early = undefined
      }
    }
    await load.over
  } finally {
    clearInterval(progress)
  }
  say('the load is over; waiting until everything is at rest')
  const seen = await watch.end()
  const notAtRest = [...(await busy(cluster.members)), ...(await unfinished(world.conductor(), world.apiKey))]
  if (options.snapshots !== undefined) await watch.snapshots(options.snapshots, 'late')
  const { begun: stories, errors } = load
  const { minutes, rate, seed } = options
  const messages = Object.fromEntries(load.messages)
  const counted = {
    minutes,
    rate,
    seed,
    stories,
    requests: world.requests,
    webhooks: receiver.received,
    errors,
    messages,
  }
  return judgeAll(counted, seen, notAtRest)
}

/** Gauges of work under way that are not zero although there is no work. */
async function busy(members: readonly Member[]): Promise<string[]> {
  const found: string[] = []
  for (const { name, role, urls } of members) {
    const text = await (await fetch(`${urls['operations'] ?? urls[role]}/metrics`)).text()
    for (const [, gauge, value] of text.matchAll(/^(chat_gateway_watcher_active|sidecar_runs_inflight)\S* (\S+)$/gm)) {
      if (Number(value) !== 0) found.push(`${name}: ${gauge} is ${value} at rest`)
    }
  }
  return found
}

/** Says how many runs are stored as not ended. */
async function unfinished(conductorUrl: string, apiKey: string): Promise<string[]> {
  const found: string[] = []
  for (const status of ['running', 'queued']) {
    const headers = { authorization: `Bearer ${apiKey}` }
    const response = await fetch(`${conductorUrl}/api/runs?status=${status}&limit=1`, { headers })
    await response.arrayBuffer()
    const total = Number(response.headers.get('x-total-count'))
    if (response.status !== 200 || total > 0) found.push(`${total} runs are ${status} at rest`)
  }
  return found
}

await runCommand(usage, readOptions, (options) =>
  withProcesses(async (processes) => {
    const outcome = await soak(options, processes)
    process.stdout.write(options.json ? `${JSON.stringify(outcome)}\n` : `\n${table(outcome)}\n\n${summary(outcome)}\n`)
    if (outcome.problems.length > 0) process.exitCode = 1
  }),
)
