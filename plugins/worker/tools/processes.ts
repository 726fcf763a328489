import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { refused } from './errors.ts'

export interface Execution {
  readonly command: readonly [file: string, ...args: string[]]
  readonly cwd: string
  readonly timeoutMs: number
  readonly signal: AbortSignal
  /** Variables in addition to those of every process. */
  readonly env?: Readonly<Record<string, string>> | undefined
}

export interface ProcessOutcome {
  /** Undefined when the process was killed. */
  readonly code: number | undefined
  /** Why the process was killed, or by which signal. */
  readonly killed?: 'timeout' | 'cancelled' | NodeJS.Signals
  /** Stdout and stderr, in the order in which they were written. */
  readonly output: string
}

export interface Processes {
  /** Runs a command. When it ends, all processes that it started are killed. */
  execute(execution: Execution): Promise<ProcessOutcome>
}

/** How long the last output is read after the end: a process that has left the group may hold the pipe open. */
const lastWordsMs = 200
/** The beginning and the end of a process's output are kept: errors are usually last. */
export const headBytes = 24 * 1024
export const tailBytes = 40 * 1024

export function createProcesses(common: Readonly<Record<string, string>>): Processes {
  const begin = (args: readonly string[], cwd: string, env: Execution['env']): ChildProcess => {
    try {
      // A process group of its own, so that all its processes can be killed together.
      return spawn('/bin/sh', args, {
        cwd,
        env: { ...common, ...env },
        detached: true,
        stdio: ['ignore', 'pipe', 'ignore'],
      })
    } catch (cause) {
      const tooLong = (cause as NodeJS.ErrnoException).code === 'E2BIG'
      throw refused(
        tooLong ? 'The command is too long: write it to a file.' : 'The process could not be started.',
        cause,
      )
    }
  }
  return {
    async execute({ command, cwd, timeoutMs, signal, env }) {
      if (signal.aborted) return { code: undefined, killed: 'cancelled', output: '' }
      // One pipe for stdout and stderr keeps their order. A shell that replaces itself by the command sets it up.
      const child = begin(['-c', 'exec "$@" 2>&1', 'sh', ...command], cwd, env)
      const output = createOutput()
      child.stdout!.on('data', (chunk: Buffer) => output.add(chunk))
      let killed: NodeJS.Signals | 'timeout' | 'cancelled' | null = null
      const kill = (why: 'timeout' | 'cancelled'): void => {
        killed ??= why
        killGroup(child)
      }
      const cancel = (): void => kill('cancelled')
      const timer = setTimeout(kill, timeoutMs, 'timeout')
      signal.addEventListener('abort', cancel, { once: true })
      try {
        const [code, by] = await ended(child)
        if (code !== null) return { code, output: output.text() }
        return { code: undefined, killed: killed ?? by ?? 'SIGKILL', output: output.text() }
      } finally {
        clearTimeout(timer)
        signal.removeEventListener('abort', cancel)
      }
    },
  }
}

async function ended(child: ChildProcess): Promise<[code: number | null, signal: NodeJS.Signals | null]> {
  const closed = once(child, 'close').catch(() => {})
  const [code, signal] = (await once(child, 'exit').catch((cause: unknown) => {
    throw refused('The process could not be started.', cause)
  })) as [number | null, NodeJS.Signals | null]
  // The rest of the group is killed at once, because the number of an empty group may soon belong to another one.
  killGroup(child)
  const late = new AbortController()
  await Promise.race([closed, sleep(lastWordsMs, undefined, { signal: late.signal }).catch(() => {})])
  late.abort()
  child.stdout!.destroy()
  return [code, signal]
}

function killGroup({ pid }: ChildProcess): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL')
  } catch {
    // The group is empty already.
  }
}

interface Output {
  add(chunk: Buffer): void
  text(): string
}

/** Holds the beginning and the end of an output of any length. */
function createOutput(): Output {
  const head: Buffer[] = []
  let headSize = 0
  const tail: Buffer[] = []
  let tailSize = 0
  let dropped = 0
  return {
    add(chunk) {
      const first = chunk.subarray(0, headBytes - headSize)
      if (first.length > 0) {
        head.push(first)
        headSize += first.length
      }
      const rest = chunk.subarray(first.length)
      if (rest.length === 0) return
      tail.push(rest)
      tailSize += rest.length
      while (tailSize - tail[0]!.length >= tailBytes) {
        const gone = tail.shift()!.length
        tailSize -= gone
        dropped += gone
      }
    },
    text() {
      const end = Buffer.concat(tail)
      const over = Math.max(0, end.length - tailBytes)
      const left = dropped + over
      if (left === 0) return decoded(Buffer.concat([...head, end]))
      return `${decoded(Buffer.concat(head))}\n[${left} bytes are left out here]\n${decoded(end.subarray(over))}`
    },
  }
}

/** A cut may split a character: its bytes become U+FFFD. */
const decoded = (bytes: Buffer): string => bytes.toString('utf8')
