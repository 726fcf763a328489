import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { chmod, mkdir, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { openInside } from './bubblewrap.ts'

const root = fileURLToPath(new URL('../../..', import.meta.url))

test('files of the host are not there', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  const canary = join(tmpdir(), `ao-canary-${randomBytes(6).toString('hex')}`)
  await writeFile(canary, 'canary')
  t.after(() => rm(canary, { force: true }))
  const elsewhere =
    '/etc/shadow /etc/hostname /etc/ssh /etc/ssl/private /root /home /mnt /srv /opt /run /boot /sys /lost+found'
  const names = ['.git', '.env', '.npmrc', '.agent-orc', 'config', 'test']
  const paths = [...elsewhere.split(' '), '/var/lib', '/var/run', '/var/log', canary]
    .concat(names.map((name) => join(root, name)))
    .filter((path) => !root.startsWith(path))
  const found = await inside.node(`
    import { readdirSync, readFileSync } from 'node:fs'
    const open = (path) => { try { readdirSync(path); return true } catch (e) { if (e.code === 'ENOENT') return false
      try { readFileSync(path); return true } catch (e) { return e.code !== 'ENOENT' } } }
    console.log(JSON.stringify(${JSON.stringify(paths)}.filter(open)))`)
  assert.deepEqual(found, [])
})

test('of the package a worker sees what is published, and of its role files only its own', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  const { stdout } = await inside.run('/bin/ls', '-a', root)
  const seen = stdout.split('\n')
  for (const name of ['kernel', 'plugins', 'providers', 'node_modules', 'package.json']) assert.ok(seen.includes(name))
  const known = new Set([
    '',
    '.',
    '..',
    'package.json',
    'node_modules',
    'CHANGELOG.md',
    'docs',
    'examples',
    'migrations',
  ])
  const code = (await readdir(root, { withFileTypes: true })).filter((one) => one.isDirectory()).map(({ name }) => name)
  assert.deepEqual(
    seen.filter((name) => !known.has(name) && (!code.includes(name) || name.startsWith('.'))),
    [],
  )
})

test('the workspace of another session is not there, by no path and through no process', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  const other = await inside.launches.start()
  const secret = randomBytes(12).toString('hex')
  await other.session.call('write_file', { path: 'secret.txt', content: secret })
  // Where its own workspace is on the host is no secret: the mount table says so.
  const host = /\S+(?= \/workspace )/.exec((await inside.sh('cat /proc/self/mountinfo')).stdout)![0]
  const { stdout } = await inside.sh(`ls -a ${host} ${host}/../.. / /workspace/.. /proc/*/root/workspace 2>&1
    grep -rls ${secret} / --exclude-dir=proc --exclude-dir=usr --exclude-dir=node_modules
    cat /proc/*/root/workspace/secret.txt /proc/*/cwd/../workspace/secret.txt 2>&1`)
  assert.ok(!stdout.includes(secret))
  assert.doesNotMatch(stdout, /secret\.txt$/m)
})

test('nothing can be written but the workspace, the state and temporary files', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  const report = (await inside.node(`
    import { appendFileSync, writeFileSync, mkdirSync, unlinkSync, chmodSync, renameSync } from 'node:fs'
    const tries = {
      ...Object.fromEntries(['/', '/etc', '/usr', '/usr/bin', '/dev', '/proc', '/var', ${JSON.stringify(root)}, ${JSON.stringify(join(root, 'kernel'))}, ${JSON.stringify(join(root, 'node_modules'))},
        '/workspace', '/state', '/tmp', '/var/tmp', '/dev/shm'].map((folder) => [folder, () => writeFileSync(folder + '/ao-written', 'x')])),
      node: () => appendFileSync(process.execPath, 'x'),
      passwd: () => appendFileSync('/etc/passwd', 'root::0:0::/:/bin/sh'),
      remove: () => unlinkSync('/etc/hosts'),
      move: () => renameSync('/etc', '/tmp/etc'),
      mode: () => chmodSync('/usr/bin/env', 0o4755),
      core_pattern: () => writeFileSync('/proc/sys/kernel/core_pattern', '|/workspace/evil'),
      modprobe: () => writeFileSync('/proc/sys/kernel/modprobe', '/workspace/evil'),
      swappiness: () => writeFileSync('/proc/sys/vm/swappiness', '60'),
      sysrq: () => writeFileSync('/proc/sysrq-trigger', 'h'),
      oom: () => writeFileSync('/proc/self/oom_score_adj', '-1000'),
      uid_map: () => writeFileSync('/proc/self/uid_map', '0 0 1'),
    }
    const done = Object.entries(tries).filter(([, attempt]) => { try { attempt(); return true } catch { return false } })
    console.log(JSON.stringify(done.map(([name]) => name)))`)) as string[]
  // Of a checkout below /tmp the folders that lead to it are those of the sandbox's own /tmp.
  const own = report.filter((path) => !path.startsWith('/tmp/'))
  assert.deepEqual(own.sort(), ['/dev/shm', '/state', '/tmp', '/var/tmp', '/workspace'])
})

test('a secret in the environment of the runner is nowhere inside', async (t) => {
  const canary = `canary-${randomBytes(12).toString('hex')}`
  process.env['AGENT_ORC_TEST_SECRET'] = canary
  t.after(() => delete process.env['AGENT_ORC_TEST_SECRET'])
  const inside = await openInside(t)
  if (!inside) return
  // A pattern that does not match itself: the search is a process, too.
  const needle = canary.replace(/.$/, '[$&]')
  const { stdout, stderr } = await inside.sh(`
    cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/self/mountinfo 2>/dev/null | tr '\\0' '\\n' | grep -c '${needle}'
    env | grep -c '${needle}'
    grep -rls '${needle}' / --exclude-dir=proc --exclude-dir=usr --exclude-dir=node_modules`)
  assert.equal(stdout, '0\n0\n', stderr)
  assert.equal(
    (await inside.sh(`grep -c SUITE_MARKER /proc/self/environ`)).stdout,
    '1\n',
    'the search finds what is there',
  )
})

test('what a worker leaves behind does not keep its folder from being removed', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  await inside.sh(
    'mkdir -p a/b && touch a/b/c && chmod 000 a/b a && ln -s /etc etc && ln -s /usr/bin/env env && mkfifo pipe',
  )
  await inside.launches.provider.destroy(inside.started.sandboxId)
  assert.ok((await readdir('/etc')).length > 0)
})

test('a folder that a runner who is root keeps its sandboxes in lets others through, and shows them nothing', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('only as root')
  const dir = join(tmpdir(), `ao-open-${randomBytes(4).toString('hex')}`)
  await mkdir(dir)
  await chmod(dir, 0o755)
  t.after(() => rm(dir, { recursive: true, force: true }))
  const inside = await openInside(t)
  if (!inside) return
  const { stdout } = await inside.sh('stat -c %u:%a /workspace /state; id -u')
  assert.equal(stdout, '1000:700\n1000:700\n1000\n')
})
