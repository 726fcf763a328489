// `npm run abuse`: a hostile tenant at full effort beside a victim, both on a fleet of four processes. Prints how the victim
// fares alone and during each attack, and fails when it is hurt or loses anything.
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { setPriority } from 'node:os'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs, promisify } from 'node:util'
import { defaultLimits, type LimitName } from '#contracts/limits'
import { publishAgent } from '../bench/agents.ts'
import { changedRole, type Cluster, command, dataDirectory, startCluster } from '../bench/cluster.ts'
import { runCommand, say, withProcesses } from '../bench/command.ts'
import { createLoad, type RunJob } from '../bench/load-client.ts'
import { queuedMs, type Processes, usageOf } from '../bench/processes.ts'
import { chatOf, environment } from '../bench/service.ts'
import { startModel } from '../bench/targets.ts'
import type { Order, Word } from './attacker.ts'
import { longestStep, slowness } from '../steps.ts'
import { type Hostile, thinness } from './attack.ts'
import { attacks } from './attacks.ts'
import { DiskProbe } from './disk.ts'
import { LoopFigures } from './loop-figures.ts'
import { type Measured, report, type Seen } from './report.ts'

interface Options {
  /** How long the victim chats, alone and during each attack. */
  readonly seconds: number
  /** Part of the names of the attacks that are carried out. */
  readonly only: string
  /** The limits of the hostile tenant; those of the role file where this names none. */
  readonly limits: Limits
}

type Limits = Readonly<Partial<Record<LimitName, number>>>

const usage = `npm run abuse -- [--seconds N] [--only TEXT] [--plan small|default]
  --seconds  how long the victim is measured, alone and during each attack; 15 unless given
  --only     attacks whose name contains this; all unless given
  --plan     the limits of the hostile tenant: those of a small plan, or the defaults; small unless given`

/** Chats of the victim in a second, each streamed. */
const perSecond = 20
/** How long an attack goes on before the victim is measured, unless it says so itself. */
const usualWarmMs = 2_000

/** How long the runs of a tenant that was deleted may take to end. */
const endingMs = 5_000

/** The limits of a small plan: what an operator gives tenants whom nobody knows. */
const smallPlan = {
  readsPerMinute: 600,
  writesPerMinute: 300,
  transferBytesPerMinute: 64 * 1024 * 1024,
  chatsPerMinute: 600,
  runningRuns: 50,
  openStreams: 100,
  profiles: 100,
  attachmentBytes: 8 * 1024 * 1024,
  toolCallsPerMinute: 600,
  delegatedRuns: 20,
  delegationDepth: 2,
  delegatedAtOnce: 10,
  workflowRuns: 50,
  pendingWorkflowRuns: 50,
  workflowCalls: 50,
  workflowSchedules: 20,
}

function readOptions(args: string[]): Options {
  const text = { type: 'string' } as const
  const { values } = parseArgs({ args, options: { seconds: text, only: text, plan: text } })
  const seconds = Number(values.seconds ?? 15)
  if (!(seconds > 0)) throw new Error('--seconds takes a number')
  const { plan = 'small', only = '' } = values
  if (plan !== 'small' && plan !== 'default') throw new Error('--plan takes small or default')
  // The fleet of the benches has next to no limits, so each is given to the tenant.
  return { seconds, only, limits: plan === 'small' ? smallPlan : defaultLimits }
}

interface Fleet {
  readonly cluster: Cluster
  /** A tenant that has used up nothing yet. */
  hostile(): Promise<Hostile>
  /** Ends a hostile tenant with all that it has begun. */
  dismiss(hostile: Hostile): Promise<void>
  measure(seconds: number): Promise<Measured>
}

/** The lowest priority that every system knows. */
const niceness = 19

/**
 * Gives an attacker only those processors that nobody else wants: a real one has a machine of its own, and what it costs to send and to read is not
 * the fleet's. That the attack is none the thinner for it is judged by its answers.
 */
async function stepBehind(pid: number): Promise<void> {
  const policy = ['--idle', '--all-tasks', '--pid', '0', String(pid)]
  await promisify(execFile)('chrt', policy).catch(() => setPriority(pid, niceness))
  // Where the scheduler keeps each session in a group of its own, both count within that group only: the group steps behind, too.
  await writeFile(`/proc/${pid}/autogroup`, String(niceness)).catch(() => {})
}

const operatorTenant = 'default'

async function start(processes: Processes, limits: Limits): Promise<Fleet> {
  const run: RunJob = createLoad(processes.fork(new URL('../bench/client.ts', import.meta.url).pathname))
  const model = await startModel(processes, 0)
  const files = await startFiles(processes)
  const mcpServer = await processes.node([new URL('../bench/mcp/server.ts', import.meta.url).pathname])
  const cluster = await startCluster({
    processes,
    env: {
      ...environment(model.url),
      ...files.env,
      AGENT_ORC_ADMIN_TENANT: operatorTenant,
      AGENT_ORC_MCP_ALLOW_HOSTS: `${new URL(String(mcpServer.line['url'])).host}=*`,
      AGENT_ORC_MASTER_KEY: randomBytes(32).toString('base64'),
    },
  })
  const disk = await DiskProbe.at(join(files.directory, 'flushed'))
  processes.onStop(() => disk.stop())
  const roots = [...cluster.pids(), files.pid]
  const cpu = (): number => {
    const { nodeCpuMs = 0, postgresCpuMs = 0 } = usageOf(roots, [cluster.postgres.child.pid!]) ?? {}
    return nodeCpuMs + postgresCpuMs
  }
  const conductor = cluster.urls('conductor')[0]!
  const gateway = cluster.urls('gateway')[0]!
  const victim = await publishAgent(conductor, cluster.apiKey, 'tick-20')
  const chat = chatOf([gateway], victim, false)
  let tenants = 0
  return {
    cluster,
    async hostile() {
      const tenant = `hostile-${++tenants}`
      await ask(conductor, cluster.apiKey, 'POST', '/api/tenants', { id: tenant })
      await ask(conductor, cluster.apiKey, 'PATCH', `/api/tenants/${tenant}`, { limits })
      const key = await issueKey(cluster, tenant)
      const quick = await publishAgent(conductor, key, 'burst-20', tenant)
      const hanging = 'hanging'
      await ask(conductor, key, 'POST', '/api/profiles', { name: hanging, model: 'openai/slow-600' })
      const delegating = 'delegating'
      const tools = ['delegate']
      await ask(conductor, key, 'POST', '/api/profiles', { name: delegating, model: 'openai/delegate-14', tools })
      const agent = { path: quick.path, key: quick.keys[0]! }
      // Limits that an operator gives reach the other processes within five seconds.
      await sleep(6_000)
      const gone = (await ask(conductor, key, 'POST', '/api/api-keys', { label: 'gone' })) as {
        id: string
        token: string
      }
      await ask(conductor, key, 'DELETE', `/api/api-keys/${gone.id}`)
      const profiles = { quick: quick.profile, hanging, delegating }
      const server = `${String(mcpServer.line['url'])}/mcp`
      return {
        tenant,
        conductor,
        gateway,
        key,
        revoked: gone.token,
        agent,
        profiles,
        mcpServer: server,
        limits: { ...defaultLimits, ...limits },
      }
    },
    async dismiss({ tenant }) {
      await ask(conductor, cluster.apiKey, 'DELETE', `/api/tenants/${tenant}`)
      await sleep(endingMs)
    },
    async measure(seconds) {
      const before = cpu()
      disk.slowest()
      const queuedBefore = roots.map(queuedMs)
      const result = await run({ ...chat, clients: 64, perSecond, durationMs: seconds * 1_000, expect: {} })
      const queued = roots.map((pid, i) => (queuedMs(pid) - queuedBefore[i]!) / seconds)
      return { ...result, cpuMs: (cpu() - before) / seconds, queuedMs: Math.max(...queued), flushMs: disk.slowest() }
    },
  }
}

/** The VirtualFS server, with a folder for everybody beside the objects of the conductor. */
async function startFiles(processes: Processes) {
  const directory = await dataDirectory(processes)
  const folder = { kind: 'folder', path: join(directory, 'folder', '{tenant}'), tenants: '*' }
  await mkdir(join(directory, 'folder'), { recursive: true })
  const file = await changedRole('vfs', directory, 'vfs', ({ mounts }) => ({
    mounts: { ...(mounts as object), folder },
  }))
  const env = {
    AGENT_ORC_STORAGE_DIR: join(directory, 'objects'),
    VFS_INTERNAL_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64'),
  }
  const { child, line } = await processes.node([...command('start'), '--json', '--config', file], {
    ...env,
    LOG_LEVEL: 'warn',
    VFS_PORT: '0',
    AGENT_ORC_OPERATIONS_PORT: '0',
    AGENT_ORC_VFS_DIR: join(directory, 'vfs'),
  })
  const { vfs } = line['urls'] as { readonly vfs: string }
  return { env: { ...env, VFS_BASE_URL: vfs }, pid: child.pid!, directory }
}

async function ask(origin: string, key: string, method: string, path: string, body?: object): Promise<unknown> {
  const response = await fetch(`${origin}${path}`, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body ? { body: JSON.stringify(body) } : {}),
  })
  const text = await response.text()
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text.slice(0, 300)}`)
  return text === '' ? undefined : JSON.parse(text)
}

/** The first key of a tenant, as an operator mints it. */
async function issueKey({ env }: Cluster, tenant: string): Promise<string> {
  const [script] = command('start').filter((word) => word.endsWith('.js'))
  const args = [script!, 'key', 'issue', '--tenant', tenant, '--role', 'admin', '--label', 'hostile', '--json']
  const { stdout } = await promisify(execFile)(process.execPath, args, { env: { ...process.env, ...env } })
  return (JSON.parse(stdout) as { token: string }).token
}

/** Runs of the victim that did not end well. Those that are under way get a moment. */
async function losses({ cluster }: Fleet): Promise<number> {
  const conductor = cluster.urls('conductor')[0]!
  const count = async (status: string): Promise<number> => {
    const headers = { authorization: `Bearer ${cluster.apiKey}` }
    const response = await fetch(`${conductor}/api/runs?status=${status}&limit=1`, { headers })
    await response.arrayBuffer()
    return Number(response.headers.get('x-total-count'))
  }
  for (let left = 40; left > 0 && (await count('running')) > 0; left--) await sleep(250)
  const bad = await Promise.all(['running', 'queued', 'error', 'cancelled', 'interrupted'].map(count))
  return bad.reduce((sum, one) => sum + one, 0)
}

/** How slow the processor is, several times. It takes the processor from the fleet, so it is asked while nobody measures the victim. */
async function slownesses(): Promise<number[]> {
  const found: number[] = []
  for (let i = 0; i < 7; i++) {
    found.push(slowness())
    await sleep(100)
  }
  return found
}

interface Stand {
  readonly fleet: Fleet
  readonly loops: LoopFigures
  readonly processes: Processes
}

async function endure({ fleet, loops, processes }: Stand, name: string, asked: number): Promise<Seen> {
  const attack = attacks.find((one) => one.name === name)!
  const seconds = Math.max(asked, attack.leastSeconds ?? 0)
  const before = await fleet.measure(seconds)
  const hostile = await fleet.hostile()
  const attacker = processes.fork(new URL('attacker.ts', import.meta.url).pathname)
  await stepBehind(attacker.pid!)
  const attackerCpu = (): number => usageOf([attacker.pid!])?.nodeCpuMs ?? 0
  const heard = (): Promise<Word> =>
    new Promise((resolve, reject) => {
      attacker.once('message', resolve)
      attacker.once('exit', () => reject(new Error(`${name}: the attacker ended`)))
    })
  const ready = heard()
  attacker.send({ attack: name, hostile } satisfies Order)
  await ready
  const began = performance.now()
  // What it costs this machine to start an attacker is no part of its attack.
  await sleep(attack.warmMs ?? usualWarmMs)
  await loops.worst()
  const slow = await slownesses()
  const attackerBefore = attackerCpu()
  const result = await fleet.measure(seconds)
  const attackerMs = (attackerCpu() - attackerBefore) / seconds
  slow.push(...(await slownesses()))
  const figures = await loops.worst()
  const done = heard()
  const attacked = (performance.now() - began) / 1_000
  attacker.send('stop')
  const last = await Promise.race([done, sleep(20_000, { answers: { 'no end': 1 } })])
  await processes.stopOne(attacker)
  const answers = 'answers' in last ? last.answers : {}
  // Two processors do not do what the default limits allow. An attack is none the thinner for that.
  const { succeeded, verdict } = thinness(attack, { answers, seconds: attacked, limits: smallPlan })
  const verdicts = [verdict, ...((await attack.judge?.(hostile)) ?? [])]
  // What it left behind, such as runs that hang and maps with thousands of parts, goes on as its limits allow. The victim is not alone before it is over.
  await fleet.dismiss(hostile)
  const lost = await losses(fleet)
  return {
    name,
    alone: [before, await fleet.measure(seconds)],
    result,
    attackerMs,
    ...figures,
    mostStepMs: longestStep(slow),
    verdicts,
    lost,
    answers,
    succeeded,
  }
}

await runCommand(usage, readOptions, ({ seconds, only, limits }) =>
  withProcesses(async (processes) => {
    say('starting one process of each role')
    const fleet = await start(processes, limits)
    say('first some chats, so that no process is cold')
    await fleet.measure(5)
    const loops = new LoopFigures(fleet.cluster)
    const seen: Seen[] = []
    for (const { name } of attacks.filter((one) => one.name.includes(only))) {
      say(name)
      seen.push(await endure({ fleet, loops, processes }, name, seconds))
    }
    const plan = limits === smallPlan ? JSON.stringify(smallPlan) : 'the default limits'
    if (!report(seen, plan)) process.exitCode = 1
  }),
)
