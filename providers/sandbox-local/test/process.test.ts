import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdir } from 'node:fs/promises'
import { test, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { isAppError } from '#kernel'
import {
  openLaunches,
  processesWith,
  sandboxProviderOf,
  startSuiteRunner,
  testKernel,
  testOrder,
  testSandboxProvider,
  until,
} from '#testing'
import plugin from '../process/index.ts'
import { signalTree, treeOf } from '../processes.ts'
import { folderFor, marker, remains } from './remains.ts'

const make = async (t: Pick<TestContext, 'after'>, config: object = { allow: true }) =>
  sandboxProviderOf(t, 'process', [{ name: 'sandbox-process', plugin, config: { dir: await folderFor(t), ...config } }])

testSandboxProvider('process', make, { order: { env: marker }, remains })

test('it is not offered unless it is allowed, and then the log says what that means', async (t) => {
  assert.equal(await make(t, {}), undefined)
  const warnings = async (config: object) => {
    const entry = { name: 'sandbox-process', plugin, config: { tenants: '*', dir: await folderFor(t), ...config } }
    const { logs } = await testKernel(t, [entry], { listeners: [] })
    return logs.filter(({ level }) => level === 'warn' || level === 40).map(({ msg }) => String(msg))
  }
  assert.deepEqual(await warnings({}), [])
  assert.match(
    (await warnings({ allow: true })).join(),
    /switched on\. It isolates nothing: .*its files, its network and its keys/,
  )
})

for (const pause of [false, true]) {
  test(`a runner that is killed leaves no process of a ${pause ? 'paused' : 'running'} worker`, async (t) => {
    const dir = await folderFor(t)
    const runner = await startSuiteRunner(t)
    const order = testOrder(runner.url, { env: marker })
    const session = runner.session(order.sessionId)
    const polled = session.polled()
    const script = fileURLToPath(new URL('./process-holder.ts', import.meta.url))
    const held = spawn(process.execPath, [script, JSON.stringify({ order, dir })], {
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    t.after(async () => signalTree((await treeOf(held.pid!)).toReversed(), 'SIGKILL'))
    await once(held.stdout, 'data')
    await polled
    // A process in a group and a session of its own: a signal to the group would not reach it.
    const forked = session.polled(({ copy }) => copy)
    await session.call('fork')
    await forked
    if (pause) {
      held.stdin.write('\n')
      await once(held.stdout, 'data')
    }
    assert.ok(processesWith(marker.SUITE_MARKER).length >= 2)
    held.kill('SIGKILL')
    await until(async () => processesWith(marker.SUITE_MARKER).length === 0, 'without processes')
    await make(t, { allow: true, dir })
    assert.equal((await readdir(dir)).length, 1, 'the next start removes its files')
  })
}

test('memory is bounded for each process, and what cannot be bounded is refused', async (t) => {
  const provider = (await make(t))!
  const launches = await openLaunches(t, provider, { env: marker })
  for (const resources of [{ pids: 10 }, { cpus: 1 }, { diskMb: 10 }, { memoryMb: 700, pids: 10 }]) {
    await assert.rejects(
      launches.launch({ resources }),
      (error) => isAppError(error) && error.code === 'invalid_sandbox' && /cannot limit/.test(error.sentence ?? ''),
    )
  }
  const { session } = await launches.start({ resources: { memoryMb: 700 } })
  const { stdout } = (await session.call('run', { command: ['/bin/bash', '-c', 'ulimit -Hd'] })) as { stdout: string }
  assert.equal(stdout.trim(), String((700 + 640) * 1024))
})

test('a template is a command of the role file, and files outlive a worker that ended', async (t) => {
  const templates = { note: ['/bin/sh', '-c', 'echo "$AGENT_ORC_SESSION_ID" >> note'], show: ['/bin/cat', 'note'] }
  const provider = (await make(t, { allow: true, templates }))!
  const launches = await openLaunches(t, provider, { env: marker })
  const sessionId = 'sess-00000000-0000000a'
  const note = await launches.launch({ template: 'note', sessionId })
  await launches.becomes(note.sandboxId, 'gone')
  const { session } = await launches.start({ sessionId })
  assert.equal(await session.call('read_file', { path: 'note' }), `${sessionId}\n`)
  await assert.rejects(launches.launch({ template: 'other' }), /it has note, show\./)
})

test('a worker that ignores being asked to end is ended, with what it started', async (t) => {
  const stubborn = [
    '/bin/sh',
    '-c',
    "trap '' TERM HUP; setsid sh -c \"trap '' TERM; sleep 600\" & sleep 600; sleep 600",
  ]
  const provider = (await make(t, { allow: true, templates: { stubborn } }))!
  const launches = await openLaunches(t, provider, { env: marker })
  const { sandboxId } = await launches.launch({ template: 'stubborn' })
  await until(async () => processesWith(marker.SUITE_MARKER).length >= 3, 'started')
  await provider.destroy(sandboxId)
  await until(async () => processesWith(marker.SUITE_MARKER).length === 0, 'without processes')
})
