import { join } from 'node:path'
import { type Command, Option } from 'commander'
import { roles, type TenantRole } from '#contracts/auth'
import { root } from '../kernel/config.ts'
import { issueKey, unknownTenant } from '../plugins/auth/keys.service.ts'
import { findTenant } from '../plugins/tenants/store.ts'
import { recorded, withPlatform } from './platform.ts'
import { terminalOf } from './terminal.ts'

interface IssueOptions {
  readonly tenant: string
  readonly role: TenantRole
  readonly label: string
  readonly config: string
}

const name = 'agent-orc key issue'

export function addKey(program: Command): void {
  program
    .command('key')
    .description('keys of the control plane')
    .command('issue')
    .description('mint a tenant API key, straight in the database (POSTGRES_DSN, AGENT_API_KEY_PEPPER)')
    .requiredOption('--tenant <id>', 'tenant the key belongs to')
    .addOption(new Option('--role <role>', 'what the key may do').choices(roles).makeOptionMandatory())
    .option('--label <text>', 'what it is for', name)
    .option('--config <file>', 'role file whose database and tokens are used', join(root, 'config/conductor.yaml'))
    .option('--json', 'answer as JSON')
    .action(async ({ tenant: tenantId, role, label, config }: IssueOptions, command: Command) => {
      const issued = await withPlatform(config, async (database, tokens) => {
        // Asked first, because there is no log to write to of a tenant that is not there.
        const tenant = await findTenant(database, tenantId)
        if (!tenant || tenant.deletedAt !== null) throw unknownTenant(tenantId)
        const request = { tenantId, role, label, createdBy: name }
        return recorded(database, { name, tenantId, action: 'api-keys.create' }, () =>
          issueKey(database, tokens, request),
        )
      })
      terminalOf(command).print(
        issued,
        () => `${issued.token}\n\nThis is the only time it is shown; its id is ${issued.id}.`,
      )
    })
}
