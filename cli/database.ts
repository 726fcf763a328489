import { join, resolve } from 'node:path'
import closeWithGrace from 'close-with-grace'
import type { Command } from 'commander'
import { boot, definePlugin, type Entry, type Role } from '#kernel'
import { startPostgres } from '#kit/postgres'
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
  // The other plugins only bring their migrations; they are not set up.
  const others = role.plugins.flatMap(({ name: entry, plugin: { name, migrations } }): Entry[] =>
    migrations
      ? [{ name: `migrations of ${entry}`, plugin: definePlugin({ name, migrations, setup: async () => ({}) }) }]
      : [],
  )
  return { ...role, listeners: {}, plugins: [{ ...database, config }, ...others] }
}

export function addPostgres(program: Command): void {
  program
    .command('postgres')
    .description('run the embedded PostgreSQL by itself, for roles in processes of their own on this machine')
    .option('--data <dir>', 'where everything is kept', '.agent-orc')
    .option('--json', 'answer as JSON')
    .action(async (options: { data: string }, command: Command) => {
      const dataDir = resolve(options.data, 'postgres')
      const server = await startPostgres({ dataDir }).catch((error: Error) => {
        throw new CliError(error.message)
      })
      closeWithGrace({ delay: 25_000, logger: false }, () => server.stop())
      const dsn = server.dsn()
      terminalOf(command).print({ ready: true, dsn }, () => `PostgreSQL is ready.\nexport POSTGRES_DSN='${dsn}'`)
      await new Promise(() => {})
    })
}
