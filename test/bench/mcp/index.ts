// `npm run bench:mcp`: a tool call through the endpoint of the MCP catalog, and through a run, over the same call at the bare MCP
// server, in alternation in the same run; the same as an app, also with the account of an end user; and what 200 entries with 50 tools each cost. See docs/performance.md.
import { randomBytes } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { startPostgres } from '#kit/postgres'
import { asOwnHosts, startAuthorizationServer } from '#testing'
import { command, dataDirectory } from '../cluster.ts'
import { runCommand, say, withProcesses } from '../command.ts'
import { type Processes, usageOf } from '../processes.ts'
import { environment } from '../service.ts'
import { median } from '../statistics.ts'
import { draw, shown } from '../table.ts'
import { type CallingModel, startCallingModel } from './model.ts'

const entries = 200
const aim = 3
/** Calls of one round, at each target. */
const calls = 100

type Issuer = Awaited<ReturnType<typeof startAuthorizationServer>>

interface Service {
  readonly pid: number
  readonly base: string
  readonly key: string
  ask(method: string, path: string, body?: object): Promise<unknown>
}

/** `own`: the servers of this machine that are entered. */
async function startService(processes: Processes, modelUrl: string, own: readonly string[]): Promise<Service> {
  const postgres = await startPostgres({ dataDir: await dataDirectory(processes), settings: { fsync: 'off' } })
  processes.onStop(() => postgres.stop())
  const env = {
    ...environment(modelUrl),
    POSTGRES_DSN: postgres.dsn(),
    AGENT_ORC_MCP_ALLOW_HOSTS: asOwnHosts(own),
    AGENT_ORC_MASTER_KEY: randomBytes(32).toString('base64'),
    AGENT_ORC_PUBLIC_URL: 'http://localhost',
  }
  const args = [...command('dev'), '--json', '--port', '0', '--data', await dataDirectory(processes)]
  const { line, child } = await processes.node(args, env)
  const { conductorUrl: base, apiKey: key } = line as { conductorUrl: string; apiKey: string }
  return {
    pid: child.pid!,
    base,
    key,
    async ask(method, path, body) {
      const response = await fetch(base + path, {
        method,
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        body: body === undefined ? null : JSON.stringify(body),
      })
      const text = await response.text()
      if (!response.ok) throw new Error(`${method} ${path} answers ${response.status}: ${text}`)
      return response.headers.get('content-type')?.includes('json;') ? (JSON.parse(text) as unknown) : undefined
    },
  }
}

async function connect(url: string, key?: string): Promise<Client> {
  const client = new Client({ name: 'bench', version: '1' })
  const headers = key === undefined ? {} : { authorization: `Bearer ${key}` }
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }) as never)
  return client
}

/** Milliseconds of each call, one after the other. */
async function timed(client: Client, name: string, times: number): Promise<number[]> {
  const taken: number[] = []
  for (let n = 0; n < times; n++) {
    const began = performance.now()
    const { isError } = await client.callTool({ name, arguments: { path: 'x' } })
    if (isError) throw new Error(`${name} failed`)
    taken.push(performance.now() - began)
  }
  return taken
}

/** The same by the route of connected apps, where an active entry is an app. */
async function timedApp(service: Service, toolkit: string, more: object, times: number): Promise<number[]> {
  const taken: number[] = []
  for (let n = 0; n < times; n++) {
    const began = performance.now()
    const body = { name: 'tool_1', arguments: { path: 'x' }, ...more }
    const answer = await service.ask('POST', `/api/apps/${toolkit}/call`, body)
    if ((answer as { ok?: boolean } | undefined)?.ok !== true) throw new Error('the app failed')
    taken.push(performance.now() - began)
  }
  return taken
}

/** Enters the server once more, as an app of which each end user has an account, and connects the one of Ann. */
async function connectAccount(service: Service, url: string, issuer: Issuer): Promise<void> {
  const oauth = { grant: 'authorization_code', connection: 'user' }
  await service.ask('POST', '/api/mcp/catalog', { name: 'accounts', url, oauth })
  const begun = await service.ask('POST', '/api/apps/accounts/connect', { endUserId: 'ann' })
  const back = await fetch(service.base + issuer.agree((begun as { url: string }).url), { redirect: 'manual' })
  if (back.status >= 400) throw new Error(`the account is not connected: ${back.status} ${await back.text()}`)
}

async function run(service: Service, profile: string): Promise<void> {
  const { runId } = (await service.ask('POST', '/api/runs', { profile, prompt: 'x' })) as { runId: string }
  await service.ask('GET', `/api/runs/${runId}/stream`)
}

/** The bare MCP server. */
interface Bare {
  readonly pid: number
  readonly url: string
}

interface Ways {
  /** Medians of a round for each way to call the tool, round after round. */
  readonly taken: Record<string, number[]>
  /** Milliseconds of the processors for each of them: of the service, of PostgreSQL, of the bare server. */
  readonly cpu: Record<string, readonly number[]>
}

async function measureCalls(service: Service, server: Bare, model: CallingModel, rounds: number): Promise<Ways> {
  const bare = await connect(server.url)
  const catalog = await connect(`${service.base}/mcp/catalog`, service.key)
  const ways: Readonly<Record<string, () => Promise<readonly number[]>>> = {
    bare: () => timed(bare, 'tool_1', calls),
    catalog: () => timed(catalog, 'e0__tool_1', calls),
    app: () => timedApp(service, 'e0', {}, calls),
    account: () => timedApp(service, 'accounts', { endUserId: 'ann' }, calls),
    async run() {
      const { waits } = model.script('mcp__e0__tool_1', 20)
      await run(service, 'caller')
      return waits
    },
  }
  const taken: Record<string, number[]> = {}
  const cpu: Record<string, number[]> = {}
  const usedNow = (): number[] => {
    const [own, other] = [usageOf([service.pid], [process.pid]), usageOf([server.pid])]
    return [own?.nodeCpuMs, own?.postgresCpuMs, other?.nodeCpuMs].map((ms) => ms ?? Number.NaN)
  }
  for (let round = -3; round < rounds; round++) {
    const names = Object.keys(ways)
    // Every round begins with another one.
    for (let i = 0; i < names.length; i++) {
      const name = names[(i + Math.abs(round)) % names.length]!
      const before = usedNow()
      const times = await ways[name]!()
      if (round < 0) continue
      const used = usedNow().map((ms, i) => (ms - before[i]!) / times.length / rounds)
      cpu[name] = used.map((ms, i) => ms + (cpu[name]?.[i] ?? 0))
      ;(taken[name] ??= []).push(median(times))
    }
  }
  await Promise.all([bare.close(), catalog.close()])
  return { taken, cpu }
}

async function residentMiB(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '')
  return Number(/VmRSS:\s+(\d+)/.exec(status)?.[1] ?? Number.NaN) / 1024
}

async function took(work: () => Promise<unknown>, times: number): Promise<number> {
  const taken: number[] = []
  for (let n = 0; n < times; n++) {
    const began = performance.now()
    await work()
    taken.push(performance.now() - began)
  }
  return median(taken)
}

/** All pages of the tools of the catalog. */
async function listAll(client: Client): Promise<number> {
  let cursor: string | undefined
  let count = 0
  do {
    const page = await client.listTools(cursor === undefined ? {} : { cursor })
    count += page.tools.length
    cursor = page.nextCursor
  } while (cursor !== undefined)
  return count
}

/** What a catalog of this size costs, in milliseconds. */
async function measureSize(service: Service, model: CallingModel, count: number): Promise<Record<string, number>> {
  const client = await connect(`${service.base}/mcp/catalog`, service.key)
  // The first list has every server asked.
  while ((await listAll(client)) < count * 50) say('servers are being called')
  const found = {
    'list all tools': await took(() => listAll(client), 10),
    'a page of tools': await took(() => client.listTools(), 20),
    'list the entries': await took(() => service.ask('GET', '/api/mcp/catalog'), 20),
    'a call': median(await timed(client, 'e0__tool_1', calls)),
    'a run that uses one entry': await took(() => {
      model.script('', 0)
      return run(service, 'caller')
    }, 20),
  }
  await client.close()
  return found
}

const usage = 'npm run bench:mcp -- [--rounds 9]'

function readOptions(args: string[]): { rounds: number } {
  const rounds = args[0] === undefined ? 9 : args[0] === '--rounds' ? Number(args[1]) : Number.NaN
  if (!Number.isSafeInteger(rounds) || rounds < 1) throw new Error('--rounds takes a whole number')
  return { rounds }
}

await runCommand(usage, readOptions, ({ rounds }) =>
  withProcesses(async (processes) => {
    const model = await startCallingModel()
    processes.onStop(() => model.close())
    const issuer = await startAuthorizationServer({ after: (stop) => processes.onStop(stop as () => Promise<void>) })
    const { line, child } = await processes.node([new URL('server.ts', import.meta.url).pathname, issuer.url])
    const bareUrl = `${String(line['url'])}/mcp`
    const service = await startService(processes, model.url, [bareUrl, issuer.url])
    const enter = (n: number) => service.ask('POST', '/api/mcp/catalog', { name: `e${n}`, url: bareUrl })
    await enter(0)
    await connectAccount(service, `${String(line['url'])}/account/mcp`, issuer)
    await service.ask('POST', '/api/profiles', {
      name: 'caller',
      model: 'openai/m',
      mcpServers: ['e0'],
      limits: { maxSteps: 50 },
    })
    say('calls')
    const { taken, cpu } = await measureCalls(service, { pid: child.pid!, url: bareUrl }, model, rounds)
    say('one entry')
    const one = await measureSize(service, model, 1)
    const before = await residentMiB(service.pid)
    say(`entering ${entries - 1} more`)
    for (let n = 1; n < entries; n++) await enter(n)
    say(`${entries} entries`)
    const many = await measureSize(service, model, entries)
    const after = await residentMiB(service.pid)

    const ratios = (name: string) => taken[name]!.map((ms, round) => ms / taken['bare']![round]!)
    const rows = Object.keys(taken).map((name) => {
      const own = ratios(name)
      const spread = `${shown(Math.min(...own), 2)}-${shown(Math.max(...own), 2)}`
      const used = cpu[name]!.map((ms) => shown(ms, 2))
      return [name, shown(median(taken[name]!), 2), `${shown(median(own), 2)}x`, spread, ...used]
    })
    const head = ['one client', 'p50 ms', 'to the bare call', 'in rounds']
    const ofCpu = ['service', 'PostgreSQL', 'bare server'].map((whose) => `CPU ms, ${whose}`)
    process.stdout.write(`${draw([[...head, ...ofCpu], ...rows])}\n\n`)
    const sizes = Object.keys(one).map((what) => [
      what,
      shown(one[what], 1),
      shown(many[what], 1),
      `${shown(many[what]! / one[what]!, 2)}x`,
    ])
    process.stdout.write(`${draw([['ms', '1 entry', `${entries} entries`, 'ratio'], ...sizes])}\n`)
    process.stdout.write(`memory of the whole server, MiB: ${shown(before, 0)} before, ${shown(after, 0)} after\n`)
    const ratio = median(ratios('catalog'))
    process.stdout.write(`${ratio <= aim ? 'met    ' : 'NOT MET'} a call through the endpoint at most ${aim}x\n`)
    process.stdout.write(`${JSON.stringify({ node: process.version, taken, cpu, one, many, before, after, ratio })}\n`)
    if (ratio > aim) process.exitCode = 1
  }),
)
