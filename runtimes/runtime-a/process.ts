import { spawn } from 'node:child_process'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Command, Spawned } from './sdk.ts'

/** The vendor's process of one run, and whatever it may start. */
export interface VendorProcess {
  readonly spawn: (command: Command) => Spawned
  /** Resolves when the process is gone; at once when it was never started. */
  gone(): Promise<void>
  /** Ends the process, first by its own protocol, then by signals. Resolves when it is gone. */
  stop(politely: () => Promise<unknown>): Promise<void>
}

/** How long the process gets to write down the turn so far, and then to end after SIGTERM. Then it is killed. */
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
        // Its stderr is not read, because it quotes prompts and model servers.
        stdio: ['pipe', 'pipe', 'ignore'],
        // It gets a process group of its own, so that it is killed with everything it has started.
        detached: true,
      })
      pid = child.pid
      // If we die it must die, too: it would finish its turn, tool calls included, while another host does it again.
      const release = pid === undefined ? undefined : afterwards('kill -s KILL -- "-$1"', String(pid))
      gone = new Promise((resolve) => {
        child.once('exit', () => resolve())
        child.once('error', () => child.pid === undefined && resolve())
      })
      // Writing fails when the process died with input unread.
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
 * Has a shell do something when this process dies before it could do it, however it dies: the pipe that the shell reads ends
 * with us. Returns how to let go of it.
 */
export function afterwards(script: string, argument: string): () => void {
  const shell = spawn('/bin/sh', ['-c', `read -r _; ${script}`, 'sh', argument], {
    env: {},
    stdio: ['pipe', 'ignore', 'ignore'],
    // Signals to our process group, e.g. by a terminal, must not reach it.
    detached: true,
  })
  shell.on('error', () => {})
  shell.stdin.on('error', () => {})
  // Neither the shell nor its pipe keeps our process alive.
  shell.unref()
  ;(shell.stdin as Socket).unref()
  return () => void shell.kill('SIGKILL')
}
