// `npm run chaos`: two of each role on real stores, under load, while processes are killed, frozen and cut off. In the end
// everything on record and everything that clients saw must keep the promises. Then the same of workflows and schedules, on conductors of
// their own. See docs/reliability.md.
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { runCommand, say } from '../bench/command.ts'
import { publishAgents } from './agents.ts'
import { startDeciding, startPayments } from './approvals.ts'
import { check } from './checker.ts'
import { injectFaults } from './faults.ts'
import { startCluster } from './cluster.ts'
import { startLoad } from './load.ts'
import { startModel } from './model.ts'
import { type Options, readOptions, usage } from './options.ts'
import { createOrphans } from './orphans.ts'
import { createRandom } from './random.ts'
import { judge, table } from './report.ts'
import { names, schedule } from './schedule.ts'
import { startServers } from './servers.ts'
import { countOpen, readStored } from './stored.ts'
import { type Proof, proveWorkflows, stopAll } from './workflows/proof.ts'

const progressMs = 10_000
/** How long the service is watched while it recovers; longer than it promises to need, so that more can be measured. */
const watchMs = 60_000
/** How long workflows and schedules take at most. */
const workflowMinutes = 3

async function main(options: Options): Promise<boolean> {
  const folder = await mkdtemp(join(tmpdir(), 'agent-orc-chaos-'))
  const logs = join(folder, 'logs')
  const stops: (() => Promise<unknown>)[] = []
  const stop = (): Promise<void> => stopAll(stops)
  process.once('SIGINT', () => void stop().then(() => process.exit(130)))
  try {
    say(`seed ${options.seed}, ${options.minutes} min, logs in ${logs}`)
    const servers = await startServers(folder)
    stops.push(() => servers.stop())
    if (!servers.ownsRedis) say('no redis-server on the PATH: an existing Redis is cut off by proxies, never stopped')
    const model = await startModel()
    stops.push(() => model.stop())
    const payments = await startPayments(folder)
    stops.push(() => payments.stop())
    const cluster = await startCluster(servers, model, logs, { files: payments.files })
    stops.push(() => cluster.stop())
    await Promise.all(names.map((name) => cluster.start(name)))
    await whole(cluster)
    const agents = await publishAgents(cluster.url('conductor-1'), cluster.apiKey)
    const orphans = createOrphans(servers.dsn, (name) => cluster.instancesOf(name))

    const random = createRandom(options.seed)
    const faults = schedule(random, options.minutes * 60_000).filter(
      (fault) => servers.ownsRedis || fault.kind !== 'restart' || fault.store !== 'redis',
    )
    const began = performance.now()
    let patientUntil = Number.POSITIVE_INFINITY
    const load = startLoad({
      ...agents,
      random: createRandom(options.seed + 1),
      rate: options.rate,
      client: {
        apiKey: cluster.apiKey,
        gateways: [cluster.url('gateway-1'), cluster.url('gateway-2')],
        conductors: [cluster.url('conductor-1'), cluster.url('conductor-2')],
        patient: () => performance.now() < patientUntil,
      },
    })
    const deciding = startDeciding(createRandom(options.seed + 2), cluster)
    const progress = setInterval(() => {
      const seconds = Math.round((performance.now() - began) / 1_000)
      say(`${String(seconds).padStart(6)} s  ${load.begun} begun, ${load.observed.length} over, ${load.busy} under way`)
    }, progressMs)
    await injectFaults(faults, { cluster, servers, orphans, say })
    const faultsOver = performance.now()
    say(`${((faultsOver - began) / 1_000).toFixed(1).padStart(6)} s  the last fault is over`)
    const healed = await whole(cluster)
    const healMs = performance.now() - faultsOver
    patientUntil = performance.now() + watchMs
    await load.finish()
    // Everything that clients were told is stored by now; other work may still be under way.
    for (let left = watchMs / 250; left > 0 && (await countOpen(servers.dsn)) > 0; left--) await sleep(250)
    clearInterval(progress)
    await deciding.stop()

    const stored = await readStored(servers.dsn)
    await stop()
    const workflows = await inShort(options, logs, stops)
    const verdict = judge({
      options,
      stored,
      observed: load.observed,
      problems: [...check(stored, load.observed), ...deciding.problems(stored, payments.made), ...orphans.stuck],
      orphans: orphans.times(stored),
      healMs: healed ? healMs : undefined,
      faults,
      begun: load.begun,
      refused: load.refused,
      workflows,
    })
    process.stdout.write(options.json ? `${JSON.stringify(verdict)}\n` : `\n${table(verdict)}\n`)
    if (!verdict.passed)
      say(`FAILED. Again: npm run chaos -- --seed ${options.seed} --minutes ${options.minutes}\nLogs: ${logs}`)
    if (verdict.passed) await rm(folder, { recursive: true, force: true })
    return verdict.passed
  } finally {
    await stop()
  }
}

/** Workflows and schedules, when everything else has been stopped: for a third as long. */
async function inShort({ minutes, seed }: Options, folder: string, stops: (() => Promise<unknown>)[]): Promise<Proof> {
  const their = Math.min(minutes / 3, workflowMinutes)
  say(`workflows and schedules, ${their.toFixed(1)} min`)
  return proveWorkflows({ minutes: their, seed, folder, stops })
}

/** Resolves to true when every process is ready, to false when one is not in time. */
async function whole(cluster: { unready(): Promise<readonly string[]> }): Promise<boolean> {
  const until = performance.now() + watchMs
  for (;;) {
    const unready = await cluster.unready()
    if (unready.length === 0) return true
    if (performance.now() > until) {
      say(`not ready: ${unready.join(', ')}`)
      return false
    }
    await sleep(100)
  }
}

await runCommand(usage, readOptions, async (options) => {
  if (!(await main(options))) process.exitCode = 1
})
