import { join } from 'node:path'
import type { Command } from 'commander'
import type { Database } from '#contracts/database'
import { root } from '../kernel/config.ts'
import { type Discrepancy, reconcile } from '../plugins/billing/upkeep.ts'
import { withPlatform } from './platform.ts'
import { CliError, columns, terminalOf } from './terminal.ts'

interface Options {
  readonly config: string
  readonly tenant?: string
}
type Found = Discrepancy & { readonly tenant: string }

export function addBilling(program: Command): void {
  const billing = program.command('billing').description('the ledger of prepaid credit')
  billing
    .command('reconcile')
    .description(
      'prove that ledger, meters and runs say the same to the millionth of a cent, straight from the database (POSTGRES_DSN); while everything runs',
    )
    .option('--config <file>', 'role file whose database is used', join(root, 'config/conductor.yaml'))
    .option('--tenant <id>', 'only this tenant')
    .option('--json', 'answer as JSON')
    .action(async ({ config, tenant }: Options, self: Command) => {
      const terminal = terminalOf(self)
      const { tenants, wrong } = await withPlatform(config, (database) => reconcileAll(database, tenant))
      terminal.print({ tenants, discrepancies: wrong }, () =>
        wrong.length === 0 ? `The ledgers of ${tenants} tenants add up.` : table(wrong),
      )
      if (wrong.length > 0) throw new CliError(`${wrong.length} inconsistencies found`)
    })
}

async function reconcileAll(
  database: Database,
  only: string | undefined,
): Promise<{ tenants: number; wrong: Found[] }> {
  const list = {
    text: 'SELECT id FROM tenants WHERE deleted_at IS NULL AND ($1::text IS NULL OR id = $1) ORDER BY id',
    values: [only ?? null],
  }
  const [tenants] = await database.systemBatch<[{ id: string }[]]>([list])
  if (only !== undefined && tenants.length === 0) throw new CliError(`there is no tenant '${only}'`)
  const wrong: Found[] = []
  for (const { id } of tenants) for (const one of await reconcile(database, id)) wrong.push({ tenant: id, ...one })
  return { tenants: tenants.length, wrong }
}

const table = (wrong: readonly Found[]): string =>
  columns(
    wrong.map(({ tenant, check, subject, expected, found }) => [
      tenant,
      check,
      subject,
      `${expected} expected, ${found} found`,
    ]),
  )
