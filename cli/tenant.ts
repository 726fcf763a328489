import { join } from 'node:path'
import { Value } from '@sinclair/typebox/value'
import type { Command } from 'commander'
import { root } from '../kernel/config.ts'
import { CreateTenant } from '../plugins/tenants/schema.ts'
import { createTenantService } from '../plugins/tenants/service.ts'
import { recorded, withPlatform } from './platform.ts'
import { CliError, terminalOf } from './terminal.ts'

interface CreateOptions {
  readonly name?: string
  readonly config: string
}

const name = 'agent-orc tenant create'

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
        const { create } = createTenantService(database, () => {})
        // The first entry of the new tenant's own log.
        return recorded(database, { name, tenantId: id, action: 'tenants.create' }, () => create(tenant))
      })
      terminalOf(command).print(
        created,
        () => `The tenant ${id} is there. Its first key: agent-orc key issue --tenant ${id} --role owner`,
      )
    })
}
