import { boot, definePlugin, isAppError } from '#kernel'
import type { AuditedWrite } from '#contracts/audit'
import { Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { environment, loadRole } from '../kernel/config.ts'
import { createAuditTrail } from '../plugins/audit/trail.ts'
import { CliError } from './terminal.ts'

/** The parts of a role file that commands work on the database with, up for as long as `work` takes. */
export async function withPlatform<T>(
  file: string,
  work: (database: Database, tokens: Tokens) => Promise<T>,
): Promise<T> {
  const role = await loadRole(file, { env: environment() })
  let parts: { database: Database; tokens: Tokens } | undefined
  const borrow = definePlugin({
    name: 'command',
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
  const plugins = [...insisting, { name: 'command', plugin: borrow }]
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

export interface Command {
  readonly name: string
  readonly tenantId: string
  readonly action: string
}

/** Does `work` as a command may: with an entry in the audit log of the tenant before it, and its outcome behind it. */
export async function recorded<T>(
  database: Database,
  { name, tenantId, action }: Command,
  work: () => Promise<T & { readonly id: string }>,
): Promise<T> {
  const trail = createAuditTrail(database, { warn: (_fields, message) => console.error(`agent-orc: ${message}`) })
  const write: AuditedWrite = { tenantId, actor: { keyId: name, role: 'operator' }, action }
  const entry = await trail.begin(write)
  try {
    const made = await work()
    await trail.end(entry, { status: 201, target: made.id })
    return made
  } catch (error) {
    await trail.end(entry, { status: isAppError(error) ? error.status : 500 })
    throw error
  }
}
