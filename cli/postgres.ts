import { resolve } from 'node:path'
import type { Command } from 'commander'
import closeWithGrace from 'close-with-grace'
import { startPostgres } from '#kit/postgres'
import { CliError, terminalOf } from './terminal.ts'

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
