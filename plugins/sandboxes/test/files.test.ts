import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { testProfile } from '#testing'
import type { RunnerSession } from '#contracts/runner'
import { type SessionVfs, usesVfs } from '#contracts/session-vfs'
import type { VfsManager } from '#contracts/vfs-manager'
import { settleFilesTool, type WorkerCommand, workerPaths } from '#contracts/wire/worker'
import { answerOf, newSession, play, sandboxed, stage } from './stage.ts'

const signal = new AbortController().signal

/** A runner with a VirtualFS whose every session has one file. */
async function setup(t: TestContext) {
  const asked: string[] = []
  const files = (session: RunnerSession): SessionVfs =>
    ({
      tree: async () => ({ mounts: [], share: { files: 1, bytes: 1, fileBytes: 1 } }),
      read: async (mount: string, path: string) => {
        asked.push(`${session.tenantId} ${mount} ${path}`)
        const body = (async function* () {
          yield Buffer.from('bytes')
        })()
        return { entry: { path, kind: 'file', bytes: 5, etag: 'e' }, body }
      },
    }) as unknown as SessionVfs
  const vfs: VfsManager = {
    of: (session) => (usesVfs(session.profile) ? files(session) : undefined),
    leases: () => [],
    lease: async () => undefined,
    forget() {},
    async close() {},
  }
  const { workers, substrate, kernel } = await stage(t, { vfs })
  const commands = (kind: WorkerCommand['kind']) =>
    substrate.boxes.flatMap(({ worker }) => worker!.commands.filter((command) => command.kind === kind))
  return { workers, substrate, kernel, commands, asked }
}

test('the worker is told when its session has files, with each tool call; with a run where the runtime has tools of its own', async (t) => {
  const { workers, commands } = await setup(t)
  const [general, vendor, without] = [
    newSession(sandboxed('general', { vfs: {} })),
    newSession(sandboxed('vendor', { vfs: {}, runtime: 'runtime_a' })),
    newSession(sandboxed('without')),
  ]
  for (const session of [general, vendor, without]) {
    assert.equal(answerOf(await play(workers, session, 'hello')), 'ok')
    await workers.callTool(session, 'shell', {}, { signal, timeoutMs: 30_000 })
  }
  const told = (kind: 'run' | 'tool') =>
    commands(kind).map((command) => ('envelope' in command ? command.envelope.vfs : 'vfs' in command && command.vfs))
  assert.deepEqual(told('run'), [undefined, true, undefined])
  assert.deepEqual(told('tool'), [true, true, false])
})

test('files are settled for runtimes with tools of their own, in a sandbox that is awake, and nothing is started for it', async (t) => {
  const { workers, substrate, commands } = await setup(t)
  const vendor = newSession(sandboxed('vendor', { vfs: {}, runtime: 'runtime_a' }))
  assert.equal(await workers.settleFiles(vendor, signal), undefined)
  assert.equal(substrate.boxes.length, 0)
  await play(workers, vendor, 'hello')
  assert.match((await workers.settleFiles(vendor, signal))!, /settle_files/)
  assert.deepEqual(
    commands('tool').map((command) => 'name' in command && command.name),
    [settleFilesTool],
  )
  // In this session only tools of the worker touch files.
  const general = newSession(sandboxed('general', { vfs: {} }))
  const toolsOnly = newSession(testProfile('p', { sandbox: { provider: 'box' }, vfs: {}, runtime: 'runtime_a' }))
  for (const session of [general, toolsOnly]) {
    await workers.callTool(session, 'shell', {}, { signal, timeoutMs: 30_000 })
    assert.equal(await workers.settleFiles(session, signal), undefined)
  }
  assert.equal(commands('tool').length, 3)
})

test('a worker gets the files of its session, on either listener, and one without the VirtualFS none', async (t) => {
  const { workers, substrate, asked } = await setup(t)
  const [mine, without] = [newSession(sandboxed('p', { vfs: {} })), newSession(sandboxed('without'))]
  for (const session of [mine, without]) await play(workers, session, 'hello')
  const [box, other] = substrate.boxes
  const file = await box!.worker!.call(workerPaths(mine.id).vfsFile('data', 'a/ü b'))
  assert.deepEqual([file.status, file.headers.get('etag'), await file.text()], [200, '"e"', 'bytes'])
  assert.deepEqual(asked, ['acme data a/ü b'])
  const tree = await box!.worker!.call(workerPaths(mine.id).vfsTree)
  const known = { headers: { 'if-none-match': tree.headers.get('etag')! } }
  assert.equal((await box!.worker!.call(workerPaths(mine.id).vfsTree, known)).status, 304)
  const none = await other!.worker!.call(workerPaths(without.id).vfsTree)
  assert.deepEqual([none.status, ((await none.json()) as { error: string }).error], [404, 'no_vfs'])
  assert.equal((await other!.worker!.call(workerPaths(mine.id).vfsTree)).status, 401)
})
