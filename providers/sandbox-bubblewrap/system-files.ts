import { lstat, mkdir, readlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

/** The user and group that a worker is, to itself. */
export const insideUser = 1000

/** What programs look up in /etc: who they are, no name server, and which authorities to trust. */
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

/** Arguments for the operating system that a sandbox sees; writes the few files that are not the machine's own into `folder`. */
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
