import { type ChildProcess, spawn, type StdioOptions } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import type { Server } from 'node:http'

/** Tells the parent where a bench process listens: one line of JSON, the first on stdout. */
export function announce(server: Server): void {
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('not listening on TCP')
  process.stdout.write(`${JSON.stringify({ url: `http://127.0.0.1:${address.port}` })}\n`)
}

export interface Started {
  readonly child: ChildProcess
  /** The first line of stdout that is a JSON object. */
  readonly line: Record<string, unknown>
}

/** Everything the bench started, stopped in reverse on exit, failure and Ctrl-C. */
export interface Processes {
  /** Starts Node on a script with `execArgv`; resolves once it has printed its line. `ipc` holds a channel to it. */
  node(args: readonly string[], env?: Readonly<Record<string, string>>, ipc?: boolean): Promise<Started>
  /** Starts Node on a script that talks over IPC and prints nothing. */
  fork(script: string): ChildProcess
  onStop(fn: () => Promise<void> | void): void
  stopOne(child: ChildProcess): Promise<void>
  stop(): Promise<void>
}

/** A process that prints no line within this time is stopped, and the run fails with what it wrote to stderr. */
const startMs = 60_000
/** Longer than any role's own shutdown grace; SIGKILL follows. */
const stopMs = 30_000

export function createProcesses(): Processes {
  const stops: (() => Promise<void> | void)[] = []
  const asked = new Set<ChildProcess>()
  let stopping: Promise<void> | undefined
  const stopOne = async (child: ChildProcess): Promise<void> => {
    if (child.exitCode !== null || child.signalCode !== null) return
    asked.add(child)
    const gone = new Promise<void>((resolve) => child.once('exit', () => resolve()))
    child.kill('SIGTERM')
    const late = setTimeout(() => child.kill('SIGKILL'), stopMs)
    await gone
    clearTimeout(late)
  }
  const start = (args: readonly string[], env: Readonly<Record<string, string>>, stdio: StdioOptions): ChildProcess => {
    if (stopping) throw new Error('stopping')
    const child = spawn(process.execPath, args, {
      env: { ...process.env, NODE_ENV: 'production', ...env },
      stdio,
      // It gets its own process group, so that a Ctrl-C on the terminal reaches the bench only, which then stops its children in order.
      detached: true,
    })
    stops.push(() => stopOne(child))
    return child
  }
  return {
    async node(args, env = {}, ipc = false) {
      const child = start(args, env, ['ignore', 'pipe', 'pipe', ...(ipc ? ['ipc' as const] : [])])
      let err = ''
      child.stderr?.on('data', (text: Buffer) => {
        err = (err + text.toString()).slice(-8_000)
      })
      const line = await firstLine(child, args.join(' '), () => err)
      child.once('exit', (code, signal) => {
        if (stopping || asked.has(child)) return
        process.stderr.write(`\n!! ${args.join(' ')} ended in mid-run (${signal ?? code}):\n${err}\n`)
      })
      return { child, line }
    },
    fork: (script) => start([script], {}, ['ignore', 'inherit', 'inherit', 'ipc']),
    onStop: (fn) => {
      stops.push(fn)
    },
    stopOne,
    stop: () =>
      (stopping ??= (async () => {
        for (const fn of stops.toReversed()) await fn()
      })()),
  }
}

function firstLine(child: ChildProcess, what: string, errors: () => string): Promise<Record<string, unknown>> {
  const { promise, resolve, reject } = Promise.withResolvers<Record<string, unknown>>()
  let out = ''
  const late = setTimeout(() => reject(new Error(`${what}: not ready after ${startMs} ms\n${errors()}`)), startMs)
  // Read to the end, because a child that writes much would block on a full pipe.
  child.stdout?.on('data', (text: Buffer) => {
    if (out === 'done') return
    out += text.toString()
    for (const line of out.split('\n').slice(0, -1)) {
      if (!line.startsWith('{')) continue
      out = 'done'
      resolve(JSON.parse(line) as Record<string, unknown>)
      return
    }
  })
  child.once('exit', (code) => reject(new Error(`${what}: exited with ${code}\n${errors()}`)))
  return promise.finally(() => clearTimeout(late))
}

/** CPU and memory of process trees. PostgreSQL's processes are counted apart. */
export interface Usage {
  readonly nodeCpuMs: number
  readonly postgresCpuMs: number
  /** Sum of resident sets, MiB. */
  readonly nodeRssMb: number
  /** Proportional share, because PostgreSQL's processes share most of theirs; MiB. */
  readonly postgresPssMb: number
}

/** Linux counts CPU time in hundredths of a second whatever its timer frequency. */
const msPerTick = 10
const pageKb = 4

/**
 * Reads the process trees below `roots` from /proc, and PostgreSQL's processes below `postgresRoots` too; undefined where
 * there is no /proc (any system but Linux).
 */
export function usageOf(roots: readonly number[], postgresRoots: readonly number[] = []): Usage | undefined {
  const processes = readProc()
  if (!processes) return undefined
  const own = treeOf(roots, processes)
  const total = { nodeCpuMs: 0, postgresCpuMs: 0, nodeRssMb: 0, postgresPssMb: 0 }
  for (const pid of new Set([...own, ...treeOf(postgresRoots, processes)])) {
    const p = processes.get(pid)
    if (!p) continue
    if (p.postgres) {
      total.postgresCpuMs += p.cpuMs
      total.postgresPssMb += pssMb(pid)
    } else if (own.has(pid)) {
      total.nodeCpuMs += p.cpuMs
      total.nodeRssMb += p.rssMb
    }
  }
  return total
}

/**
 * How long the first thread of a process was ready to go on and had no processor, since it began; 0 where nobody says. It tells a
 * machine that has too little for all who share it from a process that is slow by itself.
 */
export function queuedMs(pid: number): number {
  try {
    return Number(readFileSync(`/proc/${pid}/schedstat`, 'utf8').split(' ')[1]) / 1_000_000
  } catch {
    return 0
  }
}

/** Pids of the tree below a process, without it; empty where there is no /proc. */
export function processesBelow(root: number): Set<number> {
  const tree = treeOf([root], readProc() ?? new Map())
  tree.delete(root)
  return tree
}

function treeOf(roots: readonly number[], processes: ReadonlyMap<number, Proc>): Set<number> {
  const tree = new Set(roots)
  for (let grown = true; grown;) {
    grown = false
    for (const [pid, p] of processes) {
      if (!tree.has(pid) && tree.has(p.parent)) {
        tree.add(pid)
        grown = true
      }
    }
  }
  return tree
}

interface Proc {
  readonly parent: number
  readonly postgres: boolean
  readonly cpuMs: number
  readonly rssMb: number
}

function readProc(): Map<number, Proc> | undefined {
  if (process.platform !== 'linux') return undefined
  const found = new Map<number, Proc>()
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue
    try {
      const text = readFileSync(`/proc/${name}/stat`, 'latin1')
      const comm = text.slice(text.indexOf('(') + 1, text.lastIndexOf(')'))
      const field = text.slice(text.lastIndexOf(')') + 2).split(' ')
      // Fields of proc(5) from `state`: 1 ppid, 11 utime, 12 stime, 13 cutime, 14 cstime, 21 rss. The times of children
      // that ended are counted with their parent, so a sum over a tree never goes backwards.
      const ticks = [11, 12, 13, 14].reduce((sum, i) => sum + Number(field[i]), 0)
      found.set(Number(name), {
        parent: Number(field[1]),
        postgres: comm === 'postgres',
        cpuMs: ticks * msPerTick,
        rssMb: (Number(field[21]) * pageKb) / 1024,
      })
    } catch {
      // The process ended between the listing and the read.
    }
  }
  return found
}

function pssMb(pid: number): number {
  try {
    const pss = /^Pss:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'latin1'))
    return Number(pss?.[1] ?? 0) / 1024
  } catch {
    return 0
  }
}
