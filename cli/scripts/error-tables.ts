import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { parseEnv } from 'node:util'
import type { ErrorTable, Plugin } from '#kernel'
import { Runtimes } from '#contracts/runtime'
import { loadRole, root } from '../../kernel/config.ts'
import { tablesOf } from '../../kernel/contracts/error-docs.ts'

/** Every plugin that a role file of `config/` lists, once. */
export async function shippedPlugins(): Promise<Plugin[]> {
  const env = parseEnv(await readFile(join(root, 'config/check.env'), 'utf8'))
  const files = (await readdir(join(root, 'config'))).filter((file) => file.endsWith('.yaml')).sort()
  const found = new Set<Plugin>()
  for (const file of files) {
    const role = await loadRole(join(root, 'config', file), { env })
    for (const { plugin } of role.plugins) found.add(plugin)
  }
  return [...found]
}

/** The name of a table is said by its rows. */
export const subsystemOf = (table: ErrorTable): string => Object.values(table)[0]?.row.subsystem ?? ''

/** The tables of all that is shipped, runtimes apart; what any route may answer first, the others by name. */
export async function shippedTables(): Promise<{ services: ErrorTable[]; runtimes: ErrorTable[] }> {
  const plugins = await shippedPlugins()
  const adapters = plugins.filter(({ provides }) => Object.values(provides).some(({ id }) => id === Runtimes.id))
  const [any, ...rest] = tablesOf(plugins)
  const ofRuntimes = new Set(tablesOf(adapters))
  const byName = (a: ErrorTable, b: ErrorTable): number => (subsystemOf(a) < subsystemOf(b) ? -1 : 1)
  return {
    services: [any!, ...rest.filter((table) => !ofRuntimes.has(table)).sort(byName)],
    runtimes: rest.filter((table) => ofRuntimes.has(table)).sort(byName),
  }
}
