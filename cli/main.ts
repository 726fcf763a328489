import { Command, CommanderError } from 'commander'
import manifest from '../package.json' with { type: 'json' }
import { CliError } from './terminal.ts'

type Add = (program: Command) => void

/** The commands in the order of --help. Each is loaded when it is named, because loading all takes longer than running one. */
const commands: Readonly<Record<string, () => Promise<Add>>> = {
  dev: async () => (await import('./dev.ts')).addDev,
  start: async () => (await import('./start.ts')).addStart,
  chat: async () => (await import('./chat.ts')).addChat,
  key: async () => (await import('./tenants.ts')).addKey,
  tenant: async () => (await import('./tenants.ts')).addTenant,
  migrate: async () => (await import('./database.ts')).addMigrate,
  secrets: async () => (await import('./secrets.ts')).addSecrets,
  billing: async () => (await import('./billing.ts')).addBilling,
  runners: async () => (await import('./runners.ts')).addRunners,
  skills: async () => (await import('./skills.ts')).addSkills,
  workflow: async () => (await import('./workflows.ts')).addWorkflows,
  'check-config': async () => (await import('./check-config.ts')).addCheckConfig,
  plugins: async () => (await import('./plugins.ts')).addPlugins,
  plugin: async () => (await import('./plugins.ts')).addPlugin,
  conformance: async () => (await import('./conformance.ts')).addConformance,
  postgres: async () => (await import('./database.ts')).addPostgres,
}

/** Loads the named command, or all of them for help and for a name that is unknown. */
const named = (name = ''): Promise<Add[]> =>
  Promise.all((Object.hasOwn(commands, name) ? [commands[name]!] : Object.values(commands)).map((load) => load()))

// By its name, because the kernel, of which this would be all that is used, takes longer to load than most commands run.
const isBootError = (error: unknown): error is Error => error instanceof Error && error.name === 'BootError'

/** Runs a command line and resolves to its exit code: 0 done, 1 failed, 2 used wrongly. */
export async function main(argv: readonly string[]): Promise<number> {
  // A reader that closes the pipe early is no failure: `agent-orc chat … | head`.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error
    process.exit(0)
  })
  const program = new Command('agent-orc')
    .description(manifest.description)
    .version(manifest.version)
    .exitOverride()
    .showHelpAfterError('(agent-orc --help lists the commands)')
  for (const add of await named(argv[2])) add(program)
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
  if (isBootError(error)) {
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
