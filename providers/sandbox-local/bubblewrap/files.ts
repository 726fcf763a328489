import { lstat, mkdir, readFile, readlink, stat, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** The user and group id of a worker inside its sandbox. */
export const insideUser = 1000

/** Files of /etc that programs expect: the user, no name server, and the trusted authorities. */
const written: Readonly<Record<string, string>> = {
  passwd: `worker:x:${insideUser}:${insideUser}:worker:/workspace:/bin/sh\n`,
  group: `worker:x:${insideUser}:\n`,
  hosts: '127.0.0.1 localhost\n',
  'nsswitch.conf': 'passwd: files\ngroup: files\nhosts: files\n',
  'resolv.conf': '',
}
const taken = [
  '/etc/alternatives',
  '/etc/ca-certificates',
  '/etc/ld.so.cache',
  '/etc/localtime',
  '/etc/pki/ca-trust/extracted',
  '/etc/pki/tls/certs',
  '/etc/ssl/certs',
  '/etc/ssl/openssl.cnf',
]

/** The arguments of bwrap that bind the operating system. Writes the few files that must not be the machine's own into `folder`. */
export async function systemFiles(folder: string): Promise<readonly string[]> {
  const args = ['--ro-bind', '/usr', '/usr']
  for (const path of ['/bin', '/sbin', '/lib', '/lib32', '/lib64']) {
    const found = await lstat(path).catch(() => undefined)
    if (found?.isSymbolicLink()) args.push('--symlink', await readlink(path), path)
    else if (found) args.push('--ro-bind', path, path)
  }
  await mkdir(folder, { recursive: true, mode: 0o755 })
  for (const [name, content] of Object.entries(written)) {
    await writeFile(join(folder, name), content, { mode: 0o644 })
    args.push('--ro-bind', join(folder, name), `/etc/${name}`)
  }
  for (const path of taken) args.push('--ro-bind-try', path, path)
  return args
}

const root = fileURLToPath(new URL('../../..', import.meta.url)).replace(/\/$/, '')

/**
 * What a worker reads of this machine under its own paths: Node, the package and its dependencies. Of the package only the published files are
 * visible: no data folder, no `.env`, no `.git`, and no role file except the one in the worker's command.
 */
export async function packageFiles(): Promise<readonly string[]> {
  const { files } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as { files: readonly string[] }
  const parts = files.filter((file) => file !== 'config' && !file.startsWith('!')).map((file) => join(root, file))
  // The modules of the package itself and, when the package is installed as a dependency, those of the folders above it.
  const modules = ancestors(root).map((folder) => join(folder, 'node_modules'))
  const candidates = [process.execPath, join(root, 'package.json'), ...parts, ...modules]
  const there = await Promise.all(candidates.map(exists))
  return withoutNested(candidates.filter((path, i) => there[i] && !path.startsWith('/usr/')))
}

/** The files that a command names by absolute path: the worker's program and its role file. */
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
