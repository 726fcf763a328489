import { join } from 'node:path'
import type { Command } from 'commander'
import { BootError } from '#kernel'
import { environment, loadRole, root } from '../kernel/config.ts'
import { configProblems, decoded } from '../kernel/plan.ts'
import type { Keyring } from '../plugins/secrets/envelope.ts'
import { countKeys, type KeyCount, rewrap } from '../plugins/secrets/rewrap.ts'
import { keyringOf } from '../plugins/secrets/settings.ts'
import { withPlatform } from './platform.ts'
import { CliError, columns, terminalOf } from './terminal.ts'

interface Options {
  readonly config: string
}

export function addSecrets(program: Command): void {
  const secrets = program.command('secrets').description('the master keys that the secrets of all tenants hang on')
  const command = (name: string, description: string): Command =>
    secrets
      .command(name)
      .description(description)
      .option(
        '--config <file>',
        'role file whose database and master keys are used',
        join(root, 'config/conductor.yaml'),
      )
      .option('--json', 'answer as JSON')
  command('keys', 'how many values hang on each master key, straight from the database (POSTGRES_DSN)').action(
    async ({ config }: Options, self: Command) => {
      const keyring = await keyringIn(config)
      const keys = await withPlatform(config, (database) => countKeys(database, keyring))
      terminalOf(self).print({ keys }, () => table(keys))
    },
  )
  command(
    'rewrap',
    'move all values from AGENT_ORC_MASTER_KEY_PREVIOUS to AGENT_ORC_MASTER_KEY, while everything runs; it may be stopped and begun again at any time',
  ).action(async ({ config }: Options, self: Command) => {
    const keyring = await keyringIn(config)
    if (keyring.previous === undefined)
      throw new CliError('set AGENT_ORC_MASTER_KEY_PREVIOUS to the key that is being replaced')
    const terminal = terminalOf(self)
    const result = await withPlatform(config, async (database) => {
      const so = await rewrap(database, keyring, ({ done }) => terminal.step(`${done} values done`))
      return { ...so, keys: await countKeys(database, keyring) }
    })
    terminal.step('')
    terminal.print(result, () => `${result.done} values were moved.\n${table(result.keys)}`)
    const left = result.keys.find(({ state }) => state === 'previous')?.values ?? 0
    if (left > 0) {
      throw new CliError(
        `values left on the previous key: ${left} (not readable with it: ${result.failed}); keep that key, and run this again`,
      )
    }
  })
}

const table = (keys: readonly KeyCount[]): string =>
  columns(keys.map(({ masterKey, state, values }) => [masterKey, state, `${values} values`]))

/** The master keys as the entry `secrets` of a role file has them. */
async function keyringIn(file: string): Promise<Keyring> {
  const role = await loadRole(file, { env: environment(), only: ['secrets'] })
  const [entry] = role.plugins
  if (!entry) throw new CliError(`${file} has no entry 'secrets'`)
  const problems = configProblems(entry)
  if (problems.length > 0) throw new BootError(file, problems)
  const keyring = keyringOf(decoded(entry))
  if (!keyring) throw new CliError('set AGENT_ORC_MASTER_KEY')
  return keyring
}
