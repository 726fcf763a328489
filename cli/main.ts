import { Command, CommanderError } from 'commander'
import { BootError } from '#kernel'
import manifest from '../package.json' with { type: 'json' }
import { addChat } from './chat.ts'
import { addCheckConfig } from './check-config.ts'
import { addConformance } from './conformance.ts'
import { addDev } from './dev.ts'
import { addKey } from './key.ts'
import { addMigrate } from './migrate.ts'
import { addPlugin } from './plugin.ts'
import { addPlugins } from './plugins.ts'
import { addPostgres } from './postgres.ts'
import { addRunners } from './runners.ts'
import { addStart } from './start.ts'
import { addTenant } from './tenant.ts'
import { CliError } from './terminal.ts'

/** Runs a command line and resolves to its exit code: 0 done, 1 failed, 2 used wrongly. */
export async function main(argv: readonly string[]): Promise<number> {
  // `agent-orc chat … | head`: a reader that has seen enough is no failure.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error
    process.exit(0)
  })
  const program = new Command('agent-orc')
    .description(manifest.description)
    .version(manifest.version)
    .exitOverride()
    .showHelpAfterError('(agent-orc --help lists the commands)')
  for (const add of [
    addDev,
    addStart,
    addChat,
    addKey,
    addTenant,
    addMigrate,
    addRunners,
    addCheckConfig,
    addPlugins,
    addPlugin,
    addConformance,
    addPostgres,
  ])
    add(program)
  try {
    await program.parseAsync(argv)
    return 0
  } catch (error) {
    return exitCodeOf(error)
  }
}

function exitCodeOf(error: unknown): number {
  // Commander has already printed what was wrong.
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2
  if (error instanceof BootError) {
    console.error(error.message)
    return 1
  }
  if (error instanceof CliError) {
    console.error(`agent-orc: ${error.message}`)
    return error.exitCode
  }
  console.error('agent-orc: this is a bug:', error)
  return 1
}
