import { join } from 'node:path'
import type { Command } from 'commander'
import { boot, definePlugin, type Entry, type Role } from '#kernel'
import { environment, loadRole, root } from '../kernel/config.ts'
import { CliError, terminalOf } from './terminal.ts'

export function addMigrate(program: Command): void {
  program
    .command('migrate')
    .description('apply the database migrations and exit; the conductor does the same when it boots')
    .option(
      '--config <file>',
      'role file whose `database` entry is used, with the tables of its plugins',
      join(root, 'config/conductor.yaml'),
    )
    .option('--json', 'answer as JSON')
    .action(async (options: { config: string }, command: Command) => {
      const role = await loadRole(options.config, { env: environment() })
      const running = await boot(onlyMigrating(role, options.config))
      await running.stop()
      terminalOf(command).print({ migrated: true }, () => 'The database is up to date.')
    })
}

function onlyMigrating(role: Role, file: string): Role {
  const database = role.plugins.find((entry) => entry.name === 'database')
  if (!database) throw new CliError(`${file} has no entry 'database'`)
  const config = { ...(database.config as object), migrate: true, required: true }
  // Of the other plugins only their migrations: nothing of them is set up.
  const others = role.plugins.flatMap(({ name: entry, plugin: { name, migrations } }): Entry[] =>
    migrations
      ? [{ name: `migrations of ${entry}`, plugin: definePlugin({ name, migrations, setup: async () => ({}) }) }]
      : [],
  )
  return { ...role, listeners: {}, plugins: [{ ...database, config }, ...others] }
}
