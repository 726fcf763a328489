import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdir, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { test, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { processesWith, startSuiteRunner, testOrder, until } from '#testing'
import { bubblewrapForTests } from './bubblewrap.ts'
import { folderFor, marker } from './remains.ts'

const nobody = 65_534
const script = fileURLToPath(new URL('./bubblewrap-holder.ts', import.meta.url))

interface Said {
  readonly offered?: boolean
  readonly sandboxId?: string
  readonly log?: string
  readonly destroyed?: boolean
}

/** Starts a runner of its own; `prefix` is put before Node. */
function hold(
  t: TestContext,
  settings: object,
  { uid, prefix = [] }: { uid?: number; prefix?: readonly string[] } = {},
) {
  const [command, ...args] = [...prefix, process.execPath, script, JSON.stringify(settings)]
  const child = spawn(command!, args, {
    stdio: ['ignore', 'pipe', 'inherit'],
    cwd: '/',
    env: { PATH: '/usr/bin:/bin' },
    ...(uid === undefined ? {} : { uid, gid: uid }),
  })
  t.after(() => child.kill('SIGKILL'))
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]()
  return {
    child,
    /** The next line that has this. */
    async says<K extends keyof Said>(key: K): Promise<Said[K]> {
      for (;;) {
        const { value, done } = await lines.next()
        assert.ok(!done, `it ended without ${key}`)
        const said = JSON.parse(value as string) as Said
        if (key in said) return said[key]
      }
    },
    async kill() {
      child.kill('SIGKILL')
      await once(child, 'exit')
    },
  }
}

for (const pause of [false, true]) {
  test(`a runner that is killed leaves no process of a ${pause ? 'paused' : 'running'} sandbox, and its files to the next`, async (t) => {
    if (!(await bubblewrapForTests(t))) return
    const dir = await folderFor(t)
    const runner = await startSuiteRunner(t)
    const order = testOrder(runner.url, { env: marker })
    const session = runner.session(order.sessionId)
    const polled = session.polled()
    const held = hold(t, { dir, order, pause: false })
    await held.says('sandboxId')
    await polled
    // Processes of their own group and session, too.
    const forked = session.polled(({ copy }) => copy)
    await session.call('fork')
    await forked
    if (pause) {
      // The sandbox stands still when its runner dies.
      const other = testOrder(runner.url, { env: marker })
      const paused = hold(t, { dir, order: other, pause: true })
      await paused.says('sandboxId')
      await paused.kill()
    }
    await held.kill()
    await until(async () => processesWith(marker.SUITE_MARKER).length === 0, 'without processes')
    assert.equal((await readdir(dir)).length, pause ? 2 : 1)
    assert.ok(await bubblewrapForTests(t, { dir }))
    assert.equal((await readdir(dir)).length, 1, 'only the folder of the new runner is there')
  })
}

test('a runner that is an ordinary user has sandboxes, too, and can remove what they leave', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('only root can become another user')
  if (!(await bubblewrapForTests(t))) return
  const dir = await folderFor(t)
  await chmod(dir, 0o777)
  const runner = await startSuiteRunner(t)
  const order = testOrder(runner.url, { env: marker })
  const session = runner.session(order.sessionId)
  const polled = session.polled()
  const held = hold(t, { dir, order }, { uid: nobody })
  assert.equal(await held.says('offered'), true)
  await held.says('sandboxId')
  await polled
  const command = [
    '/bin/sh',
    '-c',
    'mkdir -p a/b && touch a/b/c && chmod 000 a/b a; cat /proc/self/uid_map /proc/sys/vm/swappiness',
  ]
  const { stdout } = (await session.call('run', { command })) as { stdout: string }
  assert.match(stdout, /^\s+1000\s+0\s+1\n/)
  const bomb =
    'my $n = 0; while ($n < 1000) { my $p = fork; last unless defined $p; if (!$p) { close STDOUT; close STDERR; sleep 600 } $n++ } print $n'
  const bounded = (await session.call('run', { command: ['/usr/bin/perl', '-e', bomb] })) as { stdout: string }
  assert.ok(Number(bounded.stdout) < 256, 'the limit of processes holds for an ordinary user')
  held.child.kill('SIGTERM')
  await held.says('destroyed')
  const [home] = await readdir(dir)
  assert.deepEqual(
    (await readdir(join(dir, home!))).filter((name) => /^[0-9a-f]{32}$/.test(name)),
    [],
  )
})

test('open files that the runner itself was started with do not come into a sandbox', async (t) => {
  if (!(await bubblewrapForTests(t))) return
  const runner = await startSuiteRunner(t)
  const order = testOrder(runner.url, { env: marker })
  const session = runner.session(order.sessionId)
  const polled = session.polled()
  const prefix = ['/bin/bash', '-c', 'exec 77</etc/shadow 78</ 250</etc/hostname; exec "$@"', 'runner']
  const held = hold(t, { dir: await folderFor(t), order }, { prefix })
  await held.says('sandboxId')
  await polled
  const { stdout } = (await session.call('run', { command: ['/bin/sh', '-c', 'ls -l /proc/[0-9]*/fd/'] })) as {
    stdout: string
  }
  assert.match(stdout, /socket:/, 'the list is there')
  assert.doesNotMatch(stdout, /shadow|hostname|-> \/$/m)
})

test('without bubblewrap there is no such provider, and the log says what to install', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('only root can hide a program')
  const programs = join(await folderFor(t), 'programs')
  await mkdir(programs)
  // In a mount namespace of its own it finds no program but this one.
  const hide = 'cp /usr/bin/rm "$0" && mount --bind "$0" /usr/bin && exec "$@"'
  const prefix = ['/usr/bin/unshare', '-m', '/bin/sh', '-c', hide, programs]
  const held = hold(t, { dir: await folderFor(t) }, { prefix })
  assert.equal(await held.says('offered'), false)
  assert.match(
    (await held.says('log'))!,
    /'bubblewrap' is not offered: there is no bwrap: install bubblewrap 0\.8 or newer/,
  )
})

test('where user namespaces are not allowed there is no such provider, and the log says so', async (t) => {
  if (!(await bubblewrapForTests(t))) return
  const dir = await folderFor(t)
  await chmod(dir, 0o777)
  // A user namespace of its own, in which nobody may make another one.
  const shut = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
  const prefix = ['/usr/bin/unshare', '-U', '-r', '/bin/sh', '-c', shut, 'runner']
  const held = hold(t, { dir }, { prefix, ...(process.getuid?.() === 0 ? { uid: nobody } : {}) })
  assert.equal(await held.says('offered'), false)
  assert.match((await held.says('log'))!, /a trial fails with 'bwrap: .*the system has to allow user namespaces/s)
})
