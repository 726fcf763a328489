import closeWithGrace from 'close-with-grace'
import type { Command } from 'commander'
import { boot, BootError, type BootOptions, type Role, type Running } from '#kernel'
import { environment, loadRole } from '../kernel/config.ts'
import { terminalOf } from './terminal.ts'

export function addStart(program: Command): void {
  program
    .command('start')
    .description('run one or more roles in this process')
    .requiredOption('--config <file...>', 'role files, e.g. config/gateway.yaml')
    .option('--json', 'one JSON line per role when it is ready')
    .action(async (options: { config: string[] }, command: Command) => {
      const terminal = terminalOf(command)
      const roles = []
      for (const file of options.config) roles.push(await loadRole(file, { env: environment(), instead: true }))
      const { running, forever } = await serve(roles)
      for (const { role, urls } of running) {
        const list = Object.entries(urls).map(([name, url]) => `${name} ${url}`)
        terminal.print({ ready: true, role, urls }, () => `${role} is ready: ${list.join(', ') || 'no listener is on'}`)
      }
      await forever
    })
}

export interface Served {
  readonly running: readonly Running[]
  /** Never resolves: the process ends by a signal. Awaiting it keeps a command from returning. */
  readonly forever: Promise<never>
  /** True once a signal came: what fails from then on fails because of it. */
  readonly stopping: boolean
  stop(): Promise<void>
}

/**
 * Boots roles side by side in this process and stops them on SIGINT, SIGTERM, or a bug nobody caught. A second signal, or the
 * end of the grace, ends the process at once.
 */
export async function serve(roles: readonly Role[], options: BootOptions = {}): Promise<Served> {
  const running: Running[] = []
  let booting: Promise<unknown> = Promise.resolve()
  const stop = async (): Promise<void> => {
    // A role that is still booting can only be stopped once it is up.
    await booting.catch(() => {})
    // One after the other in the order given: a conductor that stops still stores what its runners hold.
    for (const role of running.splice(0)) await role.stop()
  }
  const forever = new Promise<never>(() => {})
  let stopping = false
  let failure: BootError | undefined
  const grace = Math.max(...roles.map((role) => role.shutdownGrace ?? 25_000))
  const handle = closeWithGrace({ delay: grace, logger: { error: report } }, async ({ err, signal }) => {
    stopping = true
    if (err) report(err)
    else if (signal) report(`${signal}: stopping (again to stop at once)`)
    await stop()
    if (failure) throw failure
  })
  const onFailure = (error: BootError): void => {
    failure ??= error
    void handle.close()
  }
  // A second close would find everything stopping already, and end the process before it has.
  const onEnd = (): void => {
    if (!stopping) void handle.close()
  }
  stopWithParent()
  try {
    for (const role of roles) {
      const one = boot(role, { ...options, onFailure, onEnd })
      booting = one
      running.push(await one)
      if (stopping) await forever
    }
  } catch (error) {
    if (stopping) await forever
    handle.uninstall()
    await stop()
    throw error
  }
  return {
    running: [...running],
    forever,
    get stopping() {
      return stopping
    },
    stop,
  }
}

const report = (what: unknown): void => {
  if (what instanceof BootError) console.error(what.message)
  else console.error(what instanceof Error ? what : `agent-orc: ${String(what)}`)
}

/** Under an older Node, cli/agent-orc.js is our parent and holds a channel to us; its death must not leave us behind. */
function stopWithParent(): void {
  if (!process.channel) return
  process.once('disconnect', () => process.kill(process.pid, 'SIGTERM'))
  process.channel.unref()
}
