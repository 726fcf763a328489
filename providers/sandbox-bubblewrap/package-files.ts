import { lstat, readFile, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('../..', import.meta.url)).replace(/\/$/, '')

/**
 * What of this machine a worker reads, by its own paths: Node, the package and its dependencies. Of the package it is what
 * is published, so that nothing of a checkout or of a deployment comes along: no data folder, no `.env`, no `.git`, and no
 * role file but the one that the worker's command names.
 */
export async function packageFiles(): Promise<readonly string[]> {
  const { files } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as { files: readonly string[] }
  const parts = files.filter((file) => file !== 'config' && !file.startsWith('!')).map((file) => join(root, file))
  // Those of the package, and where it is installed as a dependency, those it is among.
  const modules = ancestors(root).map((folder) => join(folder, 'node_modules'))
  const candidates = [process.execPath, join(root, 'package.json'), ...parts, ...modules]
  const there = await Promise.all(candidates.map(exists))
  return withoutNested(candidates.filter((path, i) => there[i] && !path.startsWith('/usr/')))
}

/** The files that a command names by their whole path: the worker's program, and its role file. */
export async function filesNamedIn(command: readonly string[]): Promise<readonly string[]> {
  const paths = command.filter((word) => word.startsWith('/'))
  const files = await Promise.all(
    paths.map((path) =>
      stat(path).then(
        (found) => found.isFile(),
        () => false,
      ),
    ),
  )
  return paths.filter((path, i) => files[i] && !path.startsWith('/usr/'))
}

const ancestors = (folder: string): string[] =>
  folder === dirname(folder) ? [folder] : [folder, ...ancestors(dirname(folder))]

const exists = (path: string): Promise<boolean> =>
  lstat(path).then(
    () => true,
    () => false,
  )

const withoutNested = (paths: readonly string[]): string[] =>
  paths.filter((path) => !paths.some((other) => path.startsWith(`${other}/`)))
