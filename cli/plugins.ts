import { join } from 'node:path'
import type { Command } from 'commander'
import { boot, type Entry, plan } from '#kernel'
import { environment, loadRole, root } from '../kernel/config.ts'
import { sampleEnvironment } from './check-config.ts'
import { columns, terminalOf } from './terminal.ts'

export function addPlugins(program: Command): void {
  program
    .command('plugins')
    .description('show the plugins of a role in start order, with what each needs and gives')
    .argument('[file]', 'role file', join(root, 'config/dev.yaml'))
    .option('--boot', 'also boot the role without opening ports, and show how long each plugin took')
    .option('--json', 'answer as JSON')
    .action(async (file: string, options: { boot?: boolean }, command: Command) => {
      // The graph does not depend on the values, so gaps of the environment are filled with the sample ones.
      const env = options.boot ? environment() : { ...(await sampleEnvironment()), ...environment() }
      const role = await loadRole(file, { env })
      const order = plan(role)
      const took = new Map<string, number>()
      if (options.boot) {
        let current: { step: string; since: number } | undefined
        const onStep = (step: string): void => {
          const now = performance.now()
          if (current) took.set(current.step, now - current.since)
          current = { step, since: now }
        }
        const running = await boot(role, { listen: false, onStep })
        await running.stop()
      }
      const rows = order.map((entry) => describe(entry, took.get(entry.name)))
      terminalOf(command).print(rows, () =>
        columns([
          ['entry', 'plugin', 'ms', 'provides', 'requires'],
          ...rows.map((r) => [
            r.entry,
            r.plugin,
            r.bootMs === undefined ? '' : String(r.bootMs),
            r.provides.join(' ') || '-',
            r.requires.join(' ') || '-',
          ]),
        ]),
      )
    })
}

function describe({ name, plugin }: Entry, bootMs: number | undefined) {
  // `?` marks a capability that may be absent, `[]` a slot.
  const marks = { one: '', maybe: '?', many: '[]' }
  const ids = (refs: Entry['plugin']['requires']): string[] => Object.values(refs).map((c) => c.id + marks[c.mode])
  return {
    entry: name,
    plugin: plugin.name,
    provides: ids(plugin.provides),
    requires: ids(plugin.requires),
    ...(bootMs === undefined ? {} : { bootMs: Math.round(bootMs * 10) / 10 }),
  }
}
