import { spawn } from 'node:child_process'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Command, Spawned } from './sdk.ts'

/** The vendor's process of one run, and all processes that it may start. */
export interface VendorProcess {
  readonly spawn: (command: Command) => Spawned
  /** Resolves when the process is gone, at once if it was never started. */
  gone(): Promise<void>
  /** Ends the process, first by its own protocol, then by signals. Resolves when it is gone. */
  stop(politely: () => Promise<unknown>): Promise<void>
}

/** Milliseconds for the process to save the turn so far, and then to end after SIGTERM. After that it is killed. */
const politeMs = 700
const termMs = 500

export function vendorProcess(): VendorProcess {
  let gone: Promise<void> | undefined
  let pid: number | undefined
  let stopped = false
  const signal = (name: NodeJS.Signals): void => {
    if (pid === undefined) return
    try {
      process.kill(-pid, name)
    } catch {
      // The whole group has ended.
    }
  }
  const within = async (ms: number): Promise<boolean> => {
    const timer = new AbortController()
    try {
      return await Promise.race([Promise.resolve(gone).then(() => true), sleep(ms, false, { signal: timer.signal })])
    } finally {
      timer.abort()
    }
  }
  return {
    spawn({ command, args, cwd, env }) {
      if (stopped) throw new Error('the run is over')
      const child = spawn(command, args, {
        ...(cwd === undefined ? {} : { cwd }),
        env,
        // Do not read stderr, because it quotes prompts and model servers.
        stdio: ['pipe', 'pipe', 'ignore'],
        // A separate process group, so that the process is killed together with everything that it started.
        detached: true,
      })
      pid = child.pid
      // If this process dies, the vendor's process must die too. It would otherwise finish its turn, tool calls included, while another host
      // repeats the turn.
      const release = pid === undefined ? undefined : afterwards('kill -s KILL -- "-$1"', String(pid))
      gone = new Promise((resolve) => {
        child.once('exit', () => resolve())
        child.once('error', () => child.pid === undefined && resolve())
      })
      // Writing fails when the process died with unread input.
      child.stdin.on('error', () => {})
      void gone.then(() => {
        signal('SIGKILL')
        pid = undefined
        release?.()
      })
      return child
    },
    gone: async () => gone,
    async stop(politely) {
      stopped = true
      politely().catch(() => {})
      if (await within(politeMs)) return
      signal('SIGTERM')
      if (await within(termMs)) return
      signal('SIGKILL')
      await gone
    },
  }
}

/**
 * Has a shell run `script` if this process dies first, however it dies, because the shell's input pipe ends with this process. Returns a function
 * that releases the shell.
 */
export function afterwards(script: string, argument: string): () => void {
  const shell = spawn('/bin/sh', ['-c', `read -r _; ${script}`, 'sh', argument], {
    env: {},
    stdio: ['pipe', 'ignore', 'ignore'],
    // Signals to our process group, for example from a terminal, must not reach the shell.
    detached: true,
  })
  shell.on('error', () => {})
  shell.stdin.on('error', () => {})
  // Neither the shell nor its pipe keeps our process alive.
  shell.unref()
  ;(shell.stdin as Socket).unref()
  return () => void shell.kill('SIGKILL')
}
