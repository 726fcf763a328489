import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createWriteStream } from 'node:fs'
import { createInterface } from 'node:readline'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { type Proxy, startProxy } from '#testing'
import { command } from '../../bench/cluster.ts'
import type { Random } from '../random.ts'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const lowestPort = 15_000
const numbers = [0, 1, 2] as const
/** Beyond this a step of a process, or a request to any of them, has failed, and the run says so instead of waiting. */
const bootMs = 120_000
const askMs = 180_000

export interface Conductors {
  /** Asks one conductor after the other until one answers below 500. */
  ask(method: string, path: string, body?: unknown): Promise<{ status: number; body: Record<string, unknown> }>
  stop(): Promise<void>
}

/** Three conductors as real processes, each with its own way to PostgreSQL. */
class Processes implements Conductors {
  readonly key = `bootstrap-${randomBytes(16).toString('hex')}`
  readonly ways: readonly Proxy[]
  readonly #folder: string
  readonly #port = lowestPort + (process.pid % 900) * 3
  readonly #children = new Map<number, ChildProcess>()
  readonly #env: Record<string, string>
  #next = 0
  constructor(ways: readonly Proxy[], folder: string, effectsUrl: string) {
    this.ways = ways
    this.#folder = folder
    this.#env = {
      PATH: process.env['PATH'] ?? '',
      HOME: process.env['HOME'] ?? '',
      AGENT_API_KEY_PEPPER: randomBytes(32).toString('base64'),
      RUNNER_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64'),
      AGENT_ORC_BOOTSTRAP_KEY: this.key,
      // Nothing here is done by a runner, and a conductor wants one.
      RUNNER_URLS: 'http://127.0.0.1:9',
      AGENT_ORC_WORKFLOW_ALLOW_HOSTS: `${new URL(effectsUrl).host}=*`,
      LOG_LEVEL: 'info',
    }
  }

  async start(number: number): Promise<void> {
    const env = {
      ...this.#env,
      PORT: String(this.#port + number),
      POSTGRES_DSN: this.ways[number]!.url,
      AGENT_ORC_OPERATIONS_PORT: '0',
    }
    const args = [...command('start', root), '--json', '--config', 'config/conductor.yaml']
    const child = spawn(process.execPath, args, { cwd: root, env, stdio: ['ignore', 'pipe', 'pipe'] })
    this.#children.set(number, child)
    const log = createWriteStream(join(this.#folder, `conductor-${number}.log`), { flags: 'a' })
    child.stderr.pipe(log, { end: false })
    child.stdout.pipe(log, { end: false })
    const ready = Promise.withResolvers<void>()
    child.once('exit', (code) => ready.reject(new Error(`conductor ${number} ended at its start (${code})`)))
    createInterface({ input: child.stdout }).once('line', () => ready.resolve())
    const late = setTimeout(() => ready.reject(new Error(`conductor ${number} is not ready in time`)), bootMs)
    await ready.promise.finally(() => clearTimeout(late))
  }
  async kill(number: number): Promise<void> {
    const child = this.#children.get(number)!
    child.kill('SIGKILL')
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  }
  signal(number: number, signal: 'SIGSTOP' | 'SIGCONT' | 'SIGTERM'): void {
    this.#children.get(number)?.kill(signal)
  }

  async ask(method: string, path: string, body?: unknown) {
    const until = performance.now() + askMs
    for (let waitMs = 100; performance.now() < until; waitMs = Math.min(waitMs * 2, 3_000)) {
      const url = `http://127.0.0.1:${this.#port + (this.#next++ % numbers.length)}${path}`
      try {
        const answer = await fetch(url, {
          method,
          headers: { authorization: `Bearer ${this.key}`, 'content-type': 'application/json' },
          body: body === undefined ? null : JSON.stringify(body),
          signal: AbortSignal.timeout(5_000),
        })
        const text = await answer.text()
        if (answer.status < 500 && answer.status !== 429)
          return { status: answer.status, body: (text === '' ? {} : JSON.parse(text)) as Record<string, unknown> }
      } catch {
        // It is away: another one is not.
      }
      await sleep(waitMs)
    }
    throw new Error(`no conductor answers ${method} ${path}`)
  }

  async stop(): Promise<void> {
    for (const number of numbers) {
      this.signal(number, 'SIGCONT')
      await this.kill(number)
    }
    for (const way of this.ways) await way.stop()
  }
}

export async function startConductors(dsn: string, folder: string, effectsUrl: string): Promise<Processes> {
  const ways: Proxy[] = []
  for (const _ of numbers) ways.push(await startProxy(undefined, dsn))
  const conductors = new Processes(ways, folder, effectsUrl)
  for (const number of numbers) await conductors.start(number)
  return conductors
}

/** Time on average between two faults. */
const meanGapMs = 5_000

/** Kills, freezes and cuts off conductors for so long, each at its own pace. Resolves to how many faults there were of each kind. */
export async function injectFaults(
  conductors: Processes,
  random: Random,
  forMs: number,
  tell: (text: string) => void,
): Promise<Readonly<Record<string, number>>> {
  const until = performance.now() + forMs
  const faults: Record<string, number> = {}
  await Promise.all(
    numbers.map(async (number) => {
      for (;;) {
        await sleep(random.between(0.3, 1.7) * meanGapMs * numbers.length)
        if (performance.now() > until) return
        await one(conductors, number, random, (name, ms) => {
          faults[name] = (faults[name] ?? 0) + 1
          tell(`${name} conductor ${number} for ${(ms / 1_000).toFixed(1)} s`)
        })
      }
    }),
  )
  return faults
}

async function one(
  conductors: Processes,
  number: number,
  random: Random,
  tell: (name: string, ms: number) => void,
): Promise<void> {
  const what = random.next()
  const way = conductors.ways[number]!
  const during = async (name: string, ms: number): Promise<void> => {
    tell(name, ms)
    await sleep(ms)
  }
  if (what < 0.4) {
    await conductors.kill(number)
    await during('kill', random.between(100, 3_000))
    return conductors.start(number)
  }
  if (what < 0.7) {
    conductors.signal(number, 'SIGSTOP')
    // One in three is longer than a lease, so that it wakes up as somebody whose work was taken over.
    await during('freeze', random.chance(0.33) ? random.between(32_000, 40_000) : random.between(500, 8_000))
    return conductors.signal(number, 'SIGCONT')
  }
  if (what < 0.85) way.cut()
  else way.hang()
  await during(what < 0.85 ? 'cut off' : 'silence', random.between(1_000, 10_000))
  way.heal()
}
