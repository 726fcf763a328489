// `npm run chaos:rolling`: two of each role under chats of seconds, while one process after the other is stopped with SIGTERM
// and started again, as a deployment does it. No chat may fail and no delta come twice. See docs/performance.md.
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { runCommand, say } from '../../bench/command.ts'
import { publishAgents } from '../agents.ts'
import { type Cluster, startCluster } from '../cluster.ts'
import { createRandom } from '../random.ts'
import { type Name, names } from '../schedule.ts'
import { type Servers, startServers } from '../servers.ts'
import { countOpen, readStored } from '../stored.ts'
import { startLoad } from './load.ts'
import { startModel } from './model.ts'
import { type Options, readOptions, usage } from './options.ts'
import { createReadiness } from './readiness.ts'
import { judge, type Restart, table } from './verdict.ts'

const progressMs = 10_000
/** How long there is load before the first restart and after the last one. */
const aroundMs = 5_000
const redisAwayMs = 60_000
// Longer than Redis is away: where readiness asks for it, nobody is ready meanwhile.
const readyMs = 90_000
/** The grace of every role is 25 s. */
const goneMs = 30_000

async function main(options: Options): Promise<boolean> {
  const folder = await mkdtemp(join(tmpdir(), 'agent-orc-rolling-'))
  const logs = join(folder, 'logs')
  const stops: (() => Promise<unknown> | void)[] = []
  const stop = async (): Promise<void> => {
    for (const fn of stops.splice(0).toReversed()) await fn()
  }
  process.once('SIGINT', () => void stop().then(() => process.exit(130)))
  try {
    say(`seed ${options.seed}, logs in ${logs}`)
    const servers = await startServers(folder)
    stops.push(() => servers.stop())
    if (options.redisPause && !servers.ownsRedis) throw new Error('--redis-pause needs a redis-server on the PATH')
    const model = await startModel()
    stops.push(() => model.stop())
    const readiness = createReadiness()
    const cluster = await startCluster(servers, model, logs, { isReady: readiness.isReady, tls: options.tls })
    stops.push(() => cluster.stop())
    await Promise.all(names.map((name) => cluster.start(name)))
    if (!(await untilReady(cluster, names))) throw new Error('the cluster does not become ready')
    readiness.watch(cluster)
    stops.push(() => readiness.stop())
    const { plain } = await publishAgents(cluster.url('conductor-1'), cluster.apiKey)

    const random = createRandom(options.seed)
    const gateways: readonly Name[] = ['gateway-1', 'gateway-2']
    const target = {
      agent: plain,
      gateway() {
        const ready = gateways.filter(readiness.isReady)
        return cluster.url(random.pick(ready.length > 0 ? ready : gateways))
      },
    }
    const load = startLoad(target, random, options.rate, options.seconds)
    const progress = setInterval(() => say(`  ${load.begun} begun, ${load.told.length} over`), progressMs)
    stops.push(() => clearInterval(progress))
    await sleep(aroundMs)
    const [rolled] = await Promise.all([
      roll(cluster, options.restarts),
      options.redisPause ? pauseRedis(servers) : undefined,
    ])
    await sleep(aroundMs)
    await load.finish()
    clearInterval(progress)
    // Everything that clients were told is stored by now; other work may still be under way.
    for (let left = 80; left > 0 && (await countOpen(servers.dsn)) > 0; left--) await sleep(250)

    const stored = await readStored(servers.dsn)
    const verdict = judge({ told: load.told, begun: load.begun, stored, ...rolled })
    process.stdout.write(options.json ? `${JSON.stringify(verdict)}\n` : `\n${table(verdict)}\n`)
    if (!verdict.passed) say(`FAILED. Logs: ${logs}`)
    await stop()
    if (verdict.passed) await rm(folder, { recursive: true, force: true })
    return verdict.passed
  } finally {
    await stop()
  }
}

/** Restarts each process in turn, role by role; the next one only when the last one is ready again. */
async function roll(cluster: Cluster, times: number): Promise<{ restarts: Restart[]; problems: string[] }> {
  const restarts: Restart[] = []
  const problems: string[] = []
  for (let round = 1; round <= times; round++) {
    for (const name of names) {
      const stopped = performance.now()
      cluster.kill(name, 'SIGTERM')
      const late = new AbortController()
      await Promise.race([cluster.gone(name), sleep(goneMs, undefined, { signal: late.signal }).catch(() => {})])
      late.abort()
      if (cluster.isUp(name)) {
        problems.push(`${name} was still there ${goneMs / 1_000} s after SIGTERM`)
        cluster.kill(name, 'SIGKILL')
        await cluster.gone(name)
      }
      const started = performance.now()
      await cluster.start(name)
      if (!(await untilReady(cluster, [name])))
        problems.push(`${name} was not ready ${readyMs / 1_000} s after its start`)
      const restart = { name, goneMs: started - stopped, readyMs: performance.now() - started }
      restarts.push(restart)
      const seconds = (ms: number): string => (ms / 1_000).toFixed(1)
      say(
        `${round}/${times} ${name}: gone after ${seconds(restart.goneMs)} s, ready after ${seconds(restart.readyMs)} s`,
      )
    }
  }
  return { restarts, problems }
}

async function pauseRedis(servers: Servers): Promise<void> {
  say('Redis stops')
  await servers.stopRedis()
  await sleep(redisAwayMs)
  await servers.startRedis()
  say('Redis is back')
}

async function untilReady(cluster: Cluster, wanted: readonly Name[]): Promise<boolean> {
  for (const until = performance.now() + readyMs; performance.now() < until; await sleep(100)) {
    const unready = await cluster.unready()
    if (!wanted.some((name) => unready.includes(name))) return true
  }
  return false
}

await runCommand(usage, readOptions, async (options) => {
  if (!(await main(options))) process.exitCode = 1
})
