import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { refused } from './errors.ts'
import { createOutput } from './output.ts'

export interface Execution {
  readonly command: readonly [file: string, ...args: string[]]
  readonly cwd: string
  readonly timeoutMs: number
  readonly signal: AbortSignal
}

export interface Outcome {
  /** Undefined when it was killed. */
  readonly code: number | undefined
  /** By whom it was. */
  readonly killed?: 'timeout' | 'cancelled' | NodeJS.Signals
  /** What it wrote to stdout and stderr, in the order in which it did. */
  readonly output: string
}

export interface Processes {
  execute(execution: Execution): Promise<Outcome>
  /** Kills what still runs, also what was left in the background. */
  stop(): void
}

/** What a process has written before it ended is read within this time; something in the background may hold the pipe open. */
const lastWordsMs = 200

export function createProcesses(env: Readonly<Record<string, string>>): Processes {
  /** By the id of their leader, which is also that of the group. */
  const groups = new Map<number, ChildProcess>()
  const begin = (args: readonly string[], cwd: string): ChildProcess => {
    try {
      // A group of its own, so that all of it can be killed.
      return spawn('/bin/sh', args, { cwd, env, detached: true, stdio: ['ignore', 'pipe', 'ignore'] })
    } catch (cause) {
      if ((cause as NodeJS.ErrnoException).code === 'E2BIG')
        throw refused('The command is too long: write it to a file.', cause)
      throw refused('The process could not be started.', cause)
    }
  }
  return {
    async execute({ command, cwd, timeoutMs, signal }) {
      if (signal.aborted) return { code: undefined, killed: 'cancelled', output: '' }
      // One pipe for both keeps the order; a shell that replaces itself is the way to that.
      const child = begin(['-c', 'exec "$@" 2>&1', 'sh', ...command], cwd)
      const { pid } = child
      if (pid !== undefined) groups.set(pid, child)
      const output = createOutput()
      child.stdout!.on('data', (chunk: Buffer) => output.add(chunk))
      let killed: NodeJS.Signals | 'timeout' | 'cancelled' | null = null
      const kill = (why: 'timeout' | 'cancelled'): void => {
        killed ??= why
        if (pid !== undefined) signalGroup(pid, 'SIGKILL')
      }
      const onAbort = (): void => kill('cancelled')
      const timer = setTimeout(kill, timeoutMs, 'timeout')
      signal.addEventListener('abort', onAbort, { once: true })
      try {
        const [code, by] = await ended(child)
        killed ??= by
        return { code: code ?? undefined, output: output.text(), ...(killed === null ? {} : { killed }) }
      } finally {
        clearTimeout(timer)
        signal.removeEventListener('abort', onAbort)
        if (pid !== undefined && !signalGroup(pid, 0)) groups.delete(pid)
      }
    },
    stop() {
      for (const [id, leader] of groups) {
        // While members of the group live nobody else gets its number: a process that has it and is not ours is a stranger.
        const over = leader.exitCode !== null || leader.signalCode !== null
        if (!over || !signalled(id, 0)) signalGroup(id, 'SIGKILL')
      }
    },
  }
}

async function ended(child: ChildProcess): Promise<[code: number | null, signal: NodeJS.Signals | null]> {
  const closed = once(child, 'close').catch(() => {})
  const [code, signal] = (await once(child, 'exit').catch((cause: unknown) => {
    throw refused('The process could not be started.', cause)
  })) as [number | null, NodeJS.Signals | null]
  const late = new AbortController()
  await Promise.race([closed, sleep(lastWordsMs, undefined, { signal: late.signal }).catch(() => {})])
  late.abort()
  child.stdout!.destroy()
  return [code, signal]
}

const signalGroup = (id: number, signal: NodeJS.Signals | 0): boolean => signalled(-id, signal)

/** False when nobody is there to hear it. */
function signalled(id: number, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(id, signal)
  } catch {
    return false
  }
}
