import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, openSync } from 'node:fs'
import type { Server } from 'node:net'
import type { Readable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { treeOf } from '#local-sandboxes'
import { runnerPort } from './relay.ts'

export const entryFile = fileURLToPath(new URL('./inside/entry.js', import.meta.url))

/** Numbers of the open files that bwrap gets beside the usual three. The channel of Node is 3. */
const infoFd = 4
const filterFd = 5

export interface End {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  /** It could not even be started. */
  readonly error?: NodeJS.ErrnoException
}

export interface Bwrap {
  readonly child: ChildProcess
  /** Its first process as this machine numbers it. Rejects when the sandbox ends before. */
  readonly init: Promise<number>
  /** A socket that listens inside. Rejects when the sandbox ends before. */
  readonly listening: Promise<Server>
  /** Resolves when none of it runs. */
  readonly ended: Promise<End>
  /** Numbers of processes are only ours for as long as it lives: then they may be others'. */
  lives(): boolean
  /** All processes inside but the first, which only waits for them. */
  processes(): number[]
  /** Lets it become the worker, with this environment and no other. */
  become(command: readonly string[], env: Readonly<Record<string, string>>): void
}

export interface BwrapOptions {
  /** Up to the command. */
  readonly args: readonly string[]
  /** Put before our first program. */
  readonly limits: readonly string[]
  /** A file with the filter of system calls. */
  readonly filter: string
  readonly uid: number | undefined
}

/** Starts a sandbox with our own first program in it, which waits for a word before it becomes the worker. */
export function startBwrap({ args, limits, filter, uid }: BwrapOptions): Bwrap {
  const entry = [process.execPath, '--disable-warning=ExperimentalWarning', entryFile, String(runnerPort)]
  const own = ['--info-fd', String(infoFd), '--seccomp', String(filterFd)]
  const filterFile = openSync(filter, 'r')
  const child = spawn('bwrap', [...args, ...own, '--', ...limits, ...entry], {
    cwd: '/',
    // What bwrap gets, its first process shows inside.
    env: { PATH: '/usr/bin:/bin' },
    // What a terminal sends to the runner does not reach it.
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe', 'ipc', 'pipe', filterFile],
    ...(uid === undefined ? {} : { uid, gid: uid }),
  })
  closeSync(filterFile)
  const ended = new Promise<End>((resolve) => {
    child.once('exit', (code, signal) => resolve({ code, signal }))
    child.on('error', (error) => child.pid === undefined && resolve({ code: null, signal: null, error }))
  })
  const unlessEnded = <T>(wanted: (resolve: (value: T) => void) => void): Promise<T> => {
    const promise = new Promise<T>((resolve, reject) => {
      wanted(resolve)
      void ended.then(({ error }) => reject(error ?? new Error('the sandbox has ended')))
    })
    promise.catch(() => {})
    return promise
  }
  let first: number | undefined
  const lives = (): boolean => child.pid !== undefined && child.exitCode === null && child.signalCode === null
  return {
    child,
    ended,
    lives,
    init: unlessEnded((resolve) => {
      let text = ''
      // Absent when it could not even be started.
      const info = child.stdio[infoFd] as Readable | null
      info?.on('error', () => {})
      info?.on('data', (chunk: Buffer) => {
        text += chunk.toString()
        first = Number(/"child-pid":\s*(\d+)\D/.exec(text)?.[1] ?? Number.NaN) || undefined
        if (first !== undefined) resolve(first)
      })
    }),
    listening: unlessEnded((resolve) => {
      child.once('message', (_message, server) => resolve(server as Server))
    }),
    processes: () => (first === undefined || !lives() ? [] : treeOf(first).slice(1)),
    become(command, env) {
      // A channel that broke is a sandbox that has ended.
      child.send({ command, env }, () => {})
    },
  }
}
