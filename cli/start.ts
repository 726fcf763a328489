import type { Command } from 'commander'
import { environment, loadRole } from '../kernel/config.ts'
import { serve } from './serve.ts'
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
