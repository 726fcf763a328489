import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { readdir } from 'node:fs/promises'
import type { Plugin } from '#kernel'

const ours = new URL('../../migrations/', import.meta.url)

export interface Migration {
  /** The name of the external plugin that the migration belongs to. Undefined: the migration belongs to this release. */
  readonly plugin?: string
  /** Orders the migrations of one plugin, or of this release. */
  readonly number: number
  /** `0001_database_tenants`, or `notes/0001_notes` of the plugin `notes`. */
  readonly name: string
  readonly sql: string
  /** SHA-256 of the text, in hex. */
  readonly checksum: string
}

/** PostgreSQL refused a migration, or its file differs from the one that was applied. A retry changes nothing. */
export class MigrationFailed extends Error {}

/** The migrations of this release, in number order. */
export async function readMigrations(folder: URL = ours): Promise<Migration[]> {
  const migrations = await readFolder(folder)
  for (const { name, sql } of migrations)
    if (!sql.startsWith('-- owner: ')) throw new Error(`migrations/${name}.sql does not begin with '-- owner: <unit>'.`)
  return migrations
}

/**
 * The migrations that the plugins of a role bring along: by plugin in the given order, then by number. They are recorded under the plugin's own
 * name, not under its entry in the role file, because the tables are the same.
 */
export async function readPluginMigrations(
  plugins: readonly Pick<Plugin, 'name' | 'migrations'>[],
): Promise<Migration[]> {
  const folders = new Map<string, URL>()
  for (const { name, migrations: folder } of plugins) {
    if (!folder) continue
    if (!pluginForm.test(name))
      throw new MigrationFailed(
        `A plugin with tables is named in lower-case words with hyphens, 40 letters at most, not '${name}'.`,
      )
    if ((folders.get(name) ?? folder).href !== folder.href)
      throw new MigrationFailed(`Two plugins are named '${name}' and both have migrations; rename one of them.`)
    folders.set(name, folder)
  }
  const all: Migration[] = []
  for (const [plugin, folder] of folders) {
    const own = await readFolder(folder).catch((error: Error) => {
      throw new MigrationFailed(`The migrations of the plugin ${plugin} cannot be read: ${error.message}`, {
        cause: error,
      })
    })
    all.push(...own.map((m) => ({ ...m, plugin, name: `${plugin}/${m.name}` })))
  }
  return all
}

/** The form of plugin names. They are short because they begin table names, of which PostgreSQL keeps 63 bytes. The schema of pg-boss is reserved. */
const pluginForm = /^(?=.{1,40}$)(?!pgboss$)[a-z][a-z0-9]*(-[a-z0-9]+)*$/

async function readFolder(folder: URL): Promise<Migration[]> {
  const base = folder.href.endsWith('/') ? folder : new URL(`${folder.href}/`)
  const files = (await readdir(base)).filter((file) => file.endsWith('.sql'))
  const migrations = files.map((file) => readMigration(base, file))
  migrations.sort((a, b) => a.number - b.number)
  for (const [i, m] of migrations.entries()) {
    const next = migrations[i + 1]
    if (m.number === next?.number) throw new Error(`Two migrations have one number: ${m.name} and ${next.name}.`)
  }
  return migrations
}

function readMigration(folder: URL, file: string): Migration {
  const number = /^(\d{4})_[a-z0-9]+(?:[_-][a-z0-9]+)*\.sql$/.exec(file)?.[1]
  if (number === undefined) throw new Error(`migrations/${file} is not named NNNN_<what>.sql, in lower case.`)
  // Many small files, once for each start: through the pool of threads they take ten times the processor time.
  const sql = readFileSync(new URL(file, folder), 'utf8')
  // Normalize line ends, so that a checkout with CRLF gives the same checksum.
  const checksum = createHash('sha256').update(sql.replaceAll('\r\n', '\n')).digest('hex')
  return { number: Number(number), name: file.slice(0, -4), sql, checksum }
}
