import assert from 'node:assert/strict'
import { lstat, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { chooseLaunch, exited, findBinaries, hydrateSymlinks, interrupt, launch } from '../launch.ts'

const machine = (root: boolean, ...programs: string[]) => ({
  root,
  named: true,
  works: async (command: string) => programs.includes(command),
})

test('root runs PostgreSQL in a user namespace, or as nobody where the kernel forbids those', async () => {
  const both = await chooseLaunch(machine(true, 'setpriv', 'unshare'))
  assert.deepEqual([both.prefix[0], both.uid, both.watchdog], ['unshare', undefined, false])
  const nobody = await chooseLaunch(machine(true, 'setpriv'))
  assert.deepEqual([nobody.prefix[0], nobody.uid, nobody.watchdog], ['setpriv', 65534, false])
})

test('a user without a name, as in many containers, gets one in a user namespace', async () => {
  const mapped = await chooseLaunch({ ...machine(false, 'setpriv', 'unshare'), named: false })
  assert.deepEqual([mapped.prefix[0], mapped.uid], ['unshare', undefined])
})

test('without setpriv, as on macOS, a shell watches over PostgreSQL', async () => {
  const user = await chooseLaunch(machine(false, 'setpriv'))
  assert.deepEqual([user.prefix[0], user.uid, user.watchdog], ['setpriv', undefined, false])
  const mac = await chooseLaunch(machine(false))
  assert.deepEqual([mac.prefix[0], mac.uid, mac.watchdog], ['/bin/sh', undefined, true])
})

test('the watching shell interrupts its program when our end closes, and tells how the program ended', async () => {
  const how = await chooseLaunch(machine(false))
  // Not a shell: one that is started in the background ignores the interrupt for good.
  const program = `process.on('SIGINT', () => process.exit(7)); setInterval(() => {}, 1000); console.error('ready')`
  const trap = launch(how, process.execPath, ['-e', program])
  const trapped = exited(trap)
  await new Promise((resolve) => trap.stderr!.once('data', resolve))
  interrupt(how, trap)
  assert.equal((await trapped).code, 7)
  const { code, output } = await exited(launch(how, '/bin/sh', ['-c', 'echo sorry >&2; exit 3']))
  assert.deepEqual({ code, output }, { code: 3, output: 'sorry\n' })
})

test('a platform without binaries is told what to do', async () => {
  for (const platform of ['plan9', 'win32']) {
    await assert.rejects(findBinaries(platform, 'x64'), /no embedded PostgreSQL for .*Set POSTGRES_DSN/)
  }
})

test('links that a skipped postinstall left out are made, once', async (t) => {
  const root = await mkdtemp(join(tmpdir(), 'ao-links-'))
  t.after(() => rm(root, { recursive: true }))
  await mkdir(join(root, 'native', 'lib'), { recursive: true })
  const list = [{ source: 'native/lib/libpq.so.5.18', target: 'native/lib/libpq.so.5' }]
  await writeFile(join(root, 'native', 'pg-symlinks.json'), JSON.stringify(list))
  await writeFile(join(root, 'native', 'lib', 'libpq.so.5.18'), '')
  for (let time = 0; time < 2; time++) {
    await Promise.all([hydrateSymlinks(join(root, 'native')), hydrateSymlinks(join(root, 'native'))])
    assert.equal((await lstat(join(root, 'native/lib/libpq.so.5'))).isSymbolicLink(), true)
  }
})
