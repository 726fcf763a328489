import { type ChildProcess, spawn } from 'node:child_process'
import { mkdir, mkdtemp, readdir, readFile, readlink, realpath, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, sep } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'

export interface MachineCommand {
  readonly command: readonly string[]
  /** The whole environment; paths that `mounts` names are mapped to this machine. */
  readonly env: Readonly<Record<string, string>>
}

/**
 * Stands for the machine that a remote substrate would start: processes of this machine, with a folder of their own. It needs
 * Linux, because it finds its processes by their working folder in /proc.
 */
export interface StandInMachine {
  readonly folder: string
  /** Where a path of the machine is on this one. */
  locate(path: string): string
  start(command: MachineCommand): ChildProcess
  /** The processes that run in it, whoever started them. */
  pids(): Promise<number[]>
  /** Resolves when everything stands still. */
  freeze(): Promise<void>
  thaw(): Promise<void>
  /** Asks everything that runs to end. */
  terminate(): Promise<void>
  /** Ends everything that runs; files stay. */
  halt(): Promise<void>
  destroy(): Promise<void>
}

/** `mounts`: paths of the machine that are folders here, e.g. `/workspace`. */
export async function createStandInMachine(mounts: readonly string[]): Promise<StandInMachine> {
  const folder = await realpath(await mkdtemp(join(tmpdir(), 'stand-in-machine-')))
  for (const mount of mounts) await mkdir(join(folder, mount), { recursive: true })
  const locate = (path: string): string =>
    mounts.some((mount) => path === mount || path.startsWith(`${mount}/`)) ? join(folder, path) : path

  const pids = async (): Promise<number[]> => {
    const found: number[] = []
    for (const name of await readdir('/proc')) {
      if (!/^\d+$/.test(name)) continue
      const cwd = await readlink(`/proc/${name}/cwd`).catch(() => '')
      if (`${cwd}${sep}`.startsWith(folder + sep) && (await stateOf(Number(name))) !== 'Z') found.push(Number(name))
    }
    return found
  }
  /** Signals again and again, because a process may have started another one just before. */
  const signalUntil = async (signal: NodeJS.Signals, done: (states: (string | undefined)[]) => boolean) => {
    for (;;) {
      const running = await pids()
      if (done(await Promise.all(running.map(stateOf)))) return
      for (const pid of running) send(pid, signal)
      await wait(5)
    }
  }
  const machine: StandInMachine = {
    folder,
    locate,
    start({ command: [file = '', ...args], env }) {
      const inside = Object.entries(env).map(([name, value]) => [name, locate(value)] as const)
      return spawn(file, args, { cwd: folder, env: Object.fromEntries(inside), stdio: ['ignore', 'pipe', 'pipe'] })
    },
    pids,
    freeze: () => signalUntil('SIGSTOP', (states) => states.every((state) => state === 'T')),
    async thaw() {
      for (const pid of await pids()) send(pid, 'SIGCONT')
    },
    async terminate() {
      for (const pid of await pids()) send(pid, 'SIGTERM')
    },
    halt: () => signalUntil('SIGKILL', (states) => states.length === 0),
    async destroy() {
      await machine.halt()
      await rm(folder, { recursive: true, force: true, maxRetries: 5 })
    },
  }
  return machine
}

/** The state letter of proc(5); undefined when the process is gone. */
async function stateOf(pid: number): Promise<string | undefined> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined)
  return stat?.slice(stat.lastIndexOf(')') + 2)[0]
}

function send(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch {
    // It ended meanwhile.
  }
}
