import { type ChildProcess, spawn } from 'node:child_process'
import { createRpcClient, type RpcClient } from './json-rpc.ts'

export interface AppServer {
  readonly rpc: RpcClient
  /** How it ended, or undefined while it runs. For the log. */
  readonly ending: string | undefined
  /** The end of its standard error, for the log at a level that is off in production: it may quote anything. */
  readonly lastWords: string
  /** Ends the process, by force when it takes longer than a second. Resolves when nothing of it runs any more. */
  stop(): Promise<void>
}

export interface Launch {
  /** The program and what comes before its own arguments. */
  readonly command: readonly [string, ...string[]]
  readonly args: readonly string[]
  /** The whole environment. */
  readonly env: Readonly<Record<string, string>>
  readonly folder: string
}

/** It ends some 20 ms after its input does; a run that was stopped has two seconds in all. */
const stopMs = 1_000
const keptWords = 4_096

export function startAppServer({ command, args, env, folder }: Launch): AppServer {
  const [program, ...before] = command
  const child = spawn(program, [...before, 'app-server', ...args], {
    cwd: folder,
    env,
    stdio: ['pipe', 'pipe', 'pipe'],
    // It gets a process group of its own, so that what it starts ends with it. If we die first, it ends by itself when its input closes.
    detached: true,
  })
  let ending: string | undefined
  let lastWords = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (lastWords = (lastWords + text).slice(-keptWords)))
  const gone = new Promise<void>((resolve) => {
    child.once('error', (error: NodeJS.ErrnoException) => {
      ending ??= `not started: ${error.code ?? error.name}`
      resolve()
    })
    child.once('exit', (code, signal) => {
      ending ??= signal ?? `exit code ${code}`
      killGroup(child)
      resolve()
    })
  })
  const rpc = createRpcClient(child.stdin, child.stdout)
  return {
    rpc,
    get ending() {
      return ending
    },
    get lastWords() {
      return lastWords
    },
    async stop() {
      if (ending !== undefined) return
      child.stdin.end()
      const force = setTimeout(() => killGroup(child), stopMs)
      await gone
      clearTimeout(force)
    },
  }
}

function killGroup({ pid }: ChildProcess): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL')
  } catch {
    // The whole group has ended.
  }
}
