import { join } from 'node:path'
import { Value } from '@sinclair/typebox/value'
import { type Command, Option } from 'commander'
import { roles, type TenantRole } from '#contracts/auth'
import { root } from '../kernel/config.ts'
import { unknownTenant } from '../plugins/auth/keys.service.ts'
import { CreateTenant } from '../plugins/tenants/schema.ts'
import { createTenantService } from '../plugins/tenants/service.ts'
import { findTenant } from '../plugins/tenants/store.ts'
import { issueRecorded, recorded, withPlatform } from './platform.ts'
import { CliError, terminalOf } from './terminal.ts'

const creating = 'agent-orc tenant create'
const issuing = 'agent-orc key issue'

interface CreateOptions {
  readonly name?: string
  readonly config: string
}

export function addTenant(program: Command): void {
  program
    .command('tenant')
    .description('tenants of the installation')
    .command('create')
    .description('create a tenant, straight in the database (POSTGRES_DSN); `key issue` mints its first key')
    .argument('<id>', 'lower-case letters, digits, underscore, hyphen; part of the URLs of its agents')
    .option('--name <text>', 'for people; the id when absent')
    .option('--config <file>', 'role file whose database is used', join(root, 'config/conductor.yaml'))
    .option('--json', 'answer as JSON')
    .action(async (id: string, { name: title, config }: CreateOptions, command: Command) => {
      const tenant = { id, ...(title === undefined ? {} : { name: title }) }
      const [problem] = Value.Errors(CreateTenant, tenant)
      if (problem) throw new CliError(`${problem.path.slice(1)}: ${problem.message}`, 2)
      const created = await withPlatform(config, (database) => {
        const { create } = createTenantService({
          database: database,
          limits: undefined,
          retention: undefined,
          issuer: undefined,
          onDeleted() {},
        })
        // The first entry of the new tenant's own log.
        return recorded(database, { name: creating, tenantId: id, action: 'tenants.create' }, () =>
          create(tenant, creating),
        )
      })
      terminalOf(command).print(
        created,
        () => `The tenant ${id} is there. Its first key: agent-orc key issue --tenant ${id} --role owner`,
      )
    })
}

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
    .option('--label <text>', 'what it is for', issuing)
    .option('--config <file>', 'role file whose database and tokens are used', join(root, 'config/conductor.yaml'))
    .option('--json', 'answer as JSON')
    .action(async ({ tenant: tenantId, role, label, config }: IssueOptions, command: Command) => {
      const issued = await withPlatform(config, async (database, tokens) => {
        // Looked up first, because a tenant that does not exist has no audit log to write to.
        const tenant = await findTenant(database, tenantId)
        if (!tenant || tenant.deletedAt !== null) throw unknownTenant(tenantId)
        return issueRecorded({ database, tokens }, { tenantId, role, label, createdBy: issuing })
      })
      terminalOf(command).print(
        issued,
        () => `${issued.token}\n\nThis is the only time it is shown; its id is ${issued.id}.`,
      )
    })
}
