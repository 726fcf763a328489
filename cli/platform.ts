import { boot, definePlugin, isAppError, maybe, type Plugin } from '#kernel'
import type { AuditedWrite } from '#contracts/audit'
import { Tokens } from '#contracts/auth'
import { Billing } from '#contracts/billing'
import { Database } from '#contracts/database'
import { environment, loadRole } from '../kernel/config.ts'
import { createAuditTrail } from '../plugins/audit/trail.ts'
import { issueKey, type KeyRequest } from '../plugins/auth/keys.service.ts'
import { CliError } from './terminal.ts'

// What commands do straight in the database, as its operator.

export interface Platform {
  readonly database: Database
  readonly tokens: Tokens
  /** Undefined or `absent`: nobody has to pay. */
  readonly billing?: Billing | undefined
}

/** A plugin that hands out what it is given: `lent()` once its role has booted. */
export function lender(): { readonly plugin: Plugin; lent(): Platform } {
  let parts: Platform | undefined
  const plugin = definePlugin({
    name: 'command',
    requires: { database: Database, tokens: Tokens, billing: maybe(Billing) },
    async setup({ deps }) {
      parts = deps
      return {}
    },
  })
  return { plugin, lent: () => parts! }
}

/** Boots the parts of a role file that a command needs to work on the database, for as long as `work` takes. */
export async function withPlatform<T>(
  file: string,
  work: (database: Database, tokens: Tokens) => Promise<T>,
): Promise<T> {
  const role = await loadRole(file, { env: environment(), only: ['database', 'tokens'] })
  const { plugin, lent } = lender()
  const insisting = role.plugins.map((entry) =>
    entry.name === 'database' ? { ...entry, config: { ...(entry.config as object), required: true } } : entry,
  )
  const plugins = [...insisting, { name: plugin.name, plugin }]
  const running = await boot({ ...role, listeners: {}, plugins })
  try {
    const { database, tokens } = lent()
    return await work(database, tokens)
  } catch (error) {
    if (isAppError(error)) throw new CliError(error.sentence ?? error.code)
    throw error
  } finally {
    await running.stop()
  }
}

interface Recorded {
  readonly name: string
  readonly tenantId: string
  readonly action: string
}

/** Does `work` with an entry in the tenant's audit log before it, and its outcome after it. */
export async function recorded<T>(
  database: Database,
  { name, tenantId, action }: Recorded,
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

/** Mints a key that no other one minted, with an entry in the tenant's audit log. */
export const issueRecorded = ({ database, tokens }: Platform, request: KeyRequest) => {
  const { tenantId, createdBy } = request
  return recorded(database, { name: createdBy, tenantId, action: 'api-keys.create' }, () =>
    issueKey(database, tokens, request),
  )
}
