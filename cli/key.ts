import { join } from 'node:path'
import { type Command, Option } from 'commander'
import { boot, definePlugin, isAppError, type Role } from '#kernel'
import { roles, type TenantRole, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { environment, loadRole, root } from '../kernel/config.ts'
import { issueKey } from '../plugins/api-keys/issue.ts'
import { CliError, terminalOf } from './terminal.ts'

interface IssueOptions {
  readonly tenant: string
  readonly role: TenantRole
  readonly label: string
  readonly config: string
}

export function addKey(program: Command): void {
  program
    .command('key')
    .description('keys of the control plane')
    .command('issue')
    .description('mint a tenant API key, straight in the database (POSTGRES_DSN, AGENT_API_KEY_PEPPER)')
    .requiredOption('--tenant <id>', 'tenant the key belongs to')
    .addOption(new Option('--role <role>', 'what the key may do').choices(roles).makeOptionMandatory())
    .option('--label <text>', 'what it is for', 'agent-orc key issue')
    .option('--config <file>', 'role file whose database and tokens are used', join(root, 'config/conductor.yaml'))
    .option('--json', 'answer as JSON')
    .action(async ({ tenant, role, label, config }: IssueOptions, command: Command) => {
      const issued = await withPlatform(await loadRole(config, { env: environment() }), (database, tokens) =>
        issueKey(database, tokens, { tenantId: tenant, role, label, createdBy: 'agent-orc key issue' }),
      )
      terminalOf(command).print(
        issued,
        () => `${issued.token}\n\nThis is the only time it is shown; its id is ${issued.id}.`,
      )
    })
}

/** The parts of a role that minting needs, up for as long as `work` takes. */
async function withPlatform<T>(role: Role, work: (database: Database, tokens: Tokens) => Promise<T>): Promise<T> {
  let parts: { database: Database; tokens: Tokens } | undefined
  const borrow = definePlugin({
    name: 'key-issue',
    requires: { database: Database, tokens: Tokens },
    async setup({ deps }) {
      parts = deps
      return {}
    },
  })
  const needed = role.plugins.filter(({ name }) => name === 'database' || name === 'tokens')
  const insisting = needed.map((entry) =>
    entry.name === 'database' ? { ...entry, config: { ...(entry.config as object), required: true } } : entry,
  )
  const plugins = [...insisting, { name: 'key-issue', plugin: borrow }]
  const running = await boot({ ...role, listeners: {}, plugins })
  try {
    return await work(parts!.database, parts!.tokens)
  } catch (error) {
    if (isAppError(error)) throw new CliError(error.sentence ?? error.code)
    throw error
  } finally {
    await running.stop()
  }
}
