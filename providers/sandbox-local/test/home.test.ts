import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chown, mkdir, mkdtemp, readdir, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { openHome } from '../home.ts'

async function folderFor(t: TestContext): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'ao-home-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  return dir
}

/** A process of its own that opens a home in `dir`, puts a file in it and stays. */
async function holder(t: TestContext, dir: string) {
  const script = `
    import { openHome } from ${JSON.stringify(new URL('../home.ts', import.meta.url).href)}
    const home = await openHome({ dir: ${JSON.stringify(dir)} })
    await home.folders('session')
    console.log(home.path)
    setInterval(() => {}, 60_000)`
  const child = spawn(process.execPath, ['--input-type=module-typescript', '--eval', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  t.after(() => child.kill('SIGKILL'))
  const [path] = (await once(child.stdout.setEncoding('utf8'), 'data')) as [string]
  return {
    path: path.trim(),
    async kill() {
      child.kill('SIGKILL')
      await once(child, 'exit')
    },
  }
}

test('what a killed process left is removed at the next start, what a living one has is not', async (t) => {
  const dir = await folderFor(t)
  const dead = await holder(t, dir)
  const alive = await holder(t, dir)
  await dead.kill()
  const home = await openHome({ dir })
  t.after(() => home.close())
  await assert.rejects(stat(dead.path), { code: 'ENOENT' })
  assert.ok(await stat(join(alive.path, 'session', 'workspace')))
})

test('a folder of another user is left alone, whatever it is called', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('only root can give a folder away')
  const dir = await folderFor(t)
  const theirs = join(dir, 'agent-orc-sandboxes-theirs')
  await mkdir(theirs)
  await chown(theirs, 12_345, 12_345)
  const home = await openHome({ dir })
  t.after(() => home.close())
  assert.ok(await stat(theirs))
})

test('closing removes everything', async (t) => {
  const dir = await folderFor(t)
  const home = await openHome({ dir })
  const { workspace, state } = await home.folders('one')
  await writeFile(join(workspace, 'a'), 'a')
  await writeFile(join(state, 'b'), 'b')
  await home.close()
  assert.deepEqual(await readdir(dir), [])
})

test('a session has the same folders again until they are removed', async (t) => {
  const home = await openHome({ dir: await folderFor(t) })
  t.after(() => home.close())
  const { workspace } = await home.folders('one')
  await writeFile(join(workspace, 'a'), 'a')
  assert.deepEqual(await home.folders('one'), { workspace, state: join(home.path, 'one', 'state') })
  assert.deepEqual(await readdir(workspace), ['a'])
  await home.remove('one')
  await home.remove('one')
  await home.folders('one')
  assert.deepEqual(await readdir(workspace), [])
})

test('folders that are nested deeper than a path may be long are removed, too', async (t) => {
  const home = await openHome({ dir: await folderFor(t) })
  t.after(() => home.close())
  const { workspace } = await home.folders('one')
  // Shells and Node put paths together, and stop where these get too long.
  const script = 'for (1..60) { mkdir $ARGV[0] and chdir $ARGV[0] or die }'
  const child = spawn('/usr/bin/perl', ['-e', script, 'd'.repeat(200)], { cwd: workspace, env: {} })
  assert.deepEqual(await once(child, 'exit'), [0, null])
  await home.remove('one')
  await assert.rejects(stat(workspace), { code: 'ENOENT' })
})

test('a folder whose path is too long for a socket is refused with a sentence', async (t) => {
  const dir = join(await folderFor(t), 'd'.repeat(100))
  await assert.rejects(openHome({ dir }), /is too long for the folder of sandboxes/)
})
