import assert from 'node:assert/strict'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { isAppError } from '#kernel'
import type { LaunchOrder } from '#contracts/sandbox'
import { openLaunches, sandboxProviderOf, testOrder, testSandboxProvider } from '#testing'
import plugin from '../bubblewrap/index.ts'
import { openCgroups } from '../bubblewrap/limits.ts'
import { prepareMachine } from '../bubblewrap/index.ts'
import { openHome } from '../home.ts'
import { bubblewrapForTests, insideOf } from './bubblewrap.ts'
import { folderFor, marker, remains } from './remains.ts'

testSandboxProvider('bubblewrap', (t) => bubblewrapForTests(t), { order: { env: marker }, remains })

const refused =
  (words: RegExp) =>
  (error: unknown): boolean =>
    isAppError(error) && error.code === 'invalid_sandbox' && error.status === 400 && words.test(error.sentence ?? '')

test('what cannot be enforced is refused, and leaves nothing', async (t) => {
  const provider = await bubblewrapForTests(t)
  if (!provider) return
  const launch = (fields: Partial<LaunchOrder>) =>
    provider.launch(testOrder('http://127.0.0.1:1', fields), new AbortController().signal)
  await assert.rejects(launch({ resources: { cpus: 2 } }), refused(/cannot limit cpus/))
  for (const resources of [{ memoryMb: 4_097 }, { pids: 2_049 }, { diskMb: 1_025 }]) {
    await assert.rejects(launch({ resources }), refused(/at most \d+ (memoryMb|pids|diskMb), and the profile sets/))
  }
  await assert.rejects(launch({ runnerUrl: 'https://runner.example' }), refused(/plain http address/))
  await assert.rejects(
    launch({ template: 'python' }),
    refused(/This runner has no template 'python': it has none; leave it out/),
  )
})

test('a sandbox has the limits of the provider, and those of its order before them', async (t) => {
  const provider = await bubblewrapForTests(t, { memoryMb: 700, pids: 77, diskMb: 9 })
  if (!provider) return
  const launches = await openLaunches(t, provider, { env: marker })
  const look = 'ulimit -Hu; ulimit -Hd; df -k --output=size /tmp | tail -1'
  const limitsOf = async (resources: LaunchOrder['resources']): Promise<string[]> => {
    const inside = insideOf(launches, await launches.start({ resources }))
    return (await inside.run('/bin/bash', '-c', look)).stdout.trim().split(/\s+/)
  }
  const dataKb = (mb: number): string => String((mb + 640) * 1024)
  assert.deepEqual(await limitsOf({}), ['77', dataKb(700), String(9 * 1024)])
  const own = { memoryMb: 500, pids: 60, diskMb: 5 }
  assert.deepEqual(await limitsOf(own), ['60', dataKb(500), String(5 * 1024)])
})

test('a template is a command of the role file', async (t) => {
  const provider = await bubblewrapForTests(t, { templates: { sleep: ['/bin/sleep', '600'] } })
  if (!provider) return
  const launches = await openLaunches(t, provider, { env: marker })
  const { sandboxId } = await launches.launch({ template: 'sleep' })
  assert.equal(await provider.status(sandboxId), 'running')
  await assert.rejects(launches.launch({ template: 'toString' }), refused(/it has sleep\./))
})

test('further paths can be read, and only read', async (t) => {
  const folder = await folderFor(t)
  await mkdir(join(folder, 'plugin'))
  await writeFile(join(folder, 'plugin', 'index.ts'), 'export default 1')
  const provider = await bubblewrapForTests(t, { read: join(folder, 'plugin') })
  if (!provider) return
  const launches = await openLaunches(t, provider, { env: marker })
  const inside = insideOf(launches, await launches.start())
  const { stdout } = await inside.sh(`cat ${folder}/plugin/index.ts; touch ${folder}/plugin/x || echo; ls ${folder}`)
  assert.equal(stdout, 'export default 1\nplugin\n')
})

test('a program that there is not makes a sandbox that is gone', async (t) => {
  const provider = await bubblewrapForTests(t, { templates: { missing: ['/no/such/program'] } })
  if (!provider) return
  const launches = await openLaunches(t, provider)
  const { sandboxId } = await launches.launch({ template: 'missing' })
  await launches.becomes(sandboxId, 'gone')
})

test('files of a session outlive a worker that ended, and not its sandbox', async (t) => {
  const provider = await bubblewrapForTests(t)
  if (!provider) return
  const launches = await openLaunches(t, provider, { env: marker })
  const first = await launches.start()
  await first.session.call('write_file', { path: 'kept.txt', content: 'kept' })
  first.session.shutdown()
  await launches.becomes(first.sandboxId, 'gone')
  const { sessionId } = first.order
  const second = await launches.start({ sessionId })
  assert.equal(await second.session.call('read_file', { path: 'kept.txt' }), 'kept')
  await second.session.call('write_file', { path: 'more.txt', content: 'more' })
  await provider.destroy(second.sandboxId)
  const third = await launches.start({ sessionId })
  assert.equal(await third.session.call('read_file', { path: 'kept.txt' }), 'ENOENT')
})

test('a folder that is no cgroup, or hands no limits on, is refused with a sentence', async (t) => {
  const dir = await folderFor(t)
  await assert.rejects(openCgroups(dir), /is no cgroup of version 2/)
  const home = await openHome({ dir })
  t.after(() => home.close())
  await assert.rejects(prepareMachine(home, { cgroup: dir, read: [] }), /is no cgroup of version 2/)
  // The plugin boots all the same, and offers nothing.
  const entry = { name: 'sandbox-bubblewrap', plugin, config: { dir, cgroup: dir } }
  assert.equal(await sandboxProviderOf(t, 'bubblewrap', [entry]), undefined)
})
