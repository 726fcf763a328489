// `npm run bench:path`: through how many of our own files a streamed chat goes over four processes. Each process counts the
// calls of its functions (V8's precise coverage) while warm chats run one after the other, and for as long while none does.
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { publishAgent } from './agents.ts'
import { inspectable, countCalls } from './inspector.ts'
import { type Cluster, here, type Role, startCluster } from './cluster.ts'
import { createLoad, type RunJob } from './load-client.ts'
import { complain } from './measure.ts'
import { say, withProcesses } from './command.ts'
import type { Processes } from './processes.ts'
import { chatOf, environment } from './service.ts'
import { startModel } from './targets.ts'
import { type Entered, entered, type Window } from './coverage.ts'

const warmChats = 200
/** They take more than a minute, so that what comes once a minute comes in the time without chats as well. */
const chats = 150
/** Between two chats, so that each is stored and announced by itself; longer than a stored chunk waits. */
const pauseMs = 200
/** How long the work after a chat may take. */
const settleMs = 2_500
const bound = 60

const roles: readonly Role[] = ['gateway', 'conductor', 'runner', 'sidecar']

async function measure(processes: Processes): Promise<void> {
  const run = createLoad(processes.fork(new URL('client.ts', import.meta.url).pathname))
  const model = await startModel(processes, 0)
  const cluster = await startCluster({
    processes,
    env: environment(model.url),
    nodeArgs: () => inspectable,
    ipc: true,
  })
  const agent = await publishAgent(cluster.urls('conductor')[0] ?? '', cluster.apiKey, 'tick-20')
  const chat = chatOf(cluster.urls('gateway'), { ...agent, keys: agent.keys.slice(0, 1) }, false)
  const talk = (count: number, betweenMs: number) => talkFor(run, chat, count, betweenMs)
  say('warming up')
  await talk(warmChats, 0)
  await sleep(settleMs)
  await take(cluster)
  say(`${chats} chats`)
  const began = performance.now()
  await talk(chats, pauseMs)
  await sleep(settleMs)
  const busy = await take(cluster)
  say('as long without chats')
  await sleep(performance.now() - began)
  const idle = await take(cluster)
  print(new Map(roles.map((role) => [role, entered({ busy: busy.get(role)!, idle: idle.get(role)!, chats, textOf })])))
}

async function talkFor(run: RunJob, chat: ReturnType<typeof chatOf>, count: number, betweenMs: number): Promise<void> {
  for (let i = 0; i < count; i++) {
    const result = await run({ ...chat, clients: 1, expect: {} })
    complain({ name: 'four' }, 'chat', result)
    if (result.errors > 0) throw new Error('a chat failed: there is nothing to count')
    await sleep(betweenMs)
  }
}

async function take(cluster: Cluster): Promise<Map<Role, Window>> {
  const windows = new Map<Role, Window>()
  for (const { role, process } of cluster.members) windows.set(role, await countCalls(process.child))
  return windows
}

const textOf = (file: string): string => readFileSync(fileURLToPath(file), 'utf8')
const nameOf = (file: string): string => fileURLToPath(file).slice(here.length)

function print(found: ReadonlyMap<Role, Entered>): void {
  const files = new Set<string>()
  for (const [role, { files: own, generators }] of found) {
    const fresh = own.filter((file) => !files.has(file))
    for (const file of own) files.add(file)
    process.stdout.write(`\n${role}: ${own.length} files, ${fresh.length} of them not seen above\n`)
    for (const file of own) process.stdout.write(`  ${fresh.includes(file) ? ' ' : '='} ${nameOf(file)}\n`)
    process.stdout.write(`  generators: ${generators.length}\n`)
    for (const { file, name, perChat } of generators) {
      process.stdout.write(`    ${name || '(anonymous)'} in ${nameOf(file)}, ${perChat} a chat\n`)
    }
  }
  const lines = [...files].reduce((sum, file) => sum + textOf(file).split('\n').length - 1, 0)
  const generators = [...found.values()].reduce((sum, one) => sum + one.generators.length, 0)
  const met = files.size <= bound
  process.stdout.write(
    `\n${met ? 'met    ' : 'NOT MET'} at most ${bound} files of our own entered by a streamed chat: ${files.size}, of ${lines} lines\n` +
      `        generator functions entered: ${generators}; a delta passes at most these\n`,
  )
  const byRole = Object.fromEntries([...found].map(([role, { files: own }]) => [role, own.map(nameOf)]))
  process.stdout.write(`${JSON.stringify({ files: files.size, bound, met, lines, generators, byRole })}\n`)
}

await withProcesses(measure)
