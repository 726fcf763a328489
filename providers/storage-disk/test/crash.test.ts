import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { buffer } from 'node:stream/consumers'
import { test } from 'node:test'
import { DiskBackend } from '../backend.ts'

const child = new URL('child.ts', import.meta.url).pathname
const arguments_ = ['--disable-warning=ExperimentalWarning', child]

/** True where a process may mount a file system that only it sees. */
function mounts(): boolean {
  try {
    execFileSync('unshare', ['-rm', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt'], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
}

test(
  'on a full disk an upload is 507, nothing of it is left, and what was there stays',
  { skip: !mounts() },
  async (t) => {
    const dir = await mkdtemp(join(tmpdir(), 'ao-full-'))
    t.after(() => rm(dir, { recursive: true, force: true }))
    const script = `mount -t tmpfs -o size=400k tmpfs ${dir} && exec "$0" "$@"`
    const given = ['-rm', 'sh', '-c', script, process.execPath, ...arguments_, 'fill', dir]
    const said = JSON.parse(execFileSync('unshare', given, { encoding: 'utf8' }))
    const full = ['storage_full', 507]
    assert.deepEqual(said, { codes: [full, full, 'stored'], left: [], old: 3, use: { bytes: 13, objects: 2 } })
  },
)

test('a process that is killed while it writes leaves whole objects, and all that it had answered for', async (t) => {
  const dir = await mkdtemp(join(tmpdir(), 'ao-crash-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  for (const lines of [1, 5, 12]) {
    const writer = spawn(process.execPath, [...arguments_, 'write', dir], { stdio: ['ignore', 'pipe', 'inherit'] })
    const exited = once(writer, 'exit')
    const stored: string[] = []
    for await (const line of createInterface(writer.stdout)) {
      stored.push(line)
      if (stored.length === lines) writer.kill('SIGKILL')
    }
    await exited
    const store = new DiskBackend(dir)
    const { objects } = await store.list('acme', { prefix: '', after: '', limit: 100, folders: false })
    for (const key of stored)
      assert.ok(
        objects.some((one) => one.key === key),
        key,
      )
    for (const { key } of objects) {
      const text = (await buffer(await (await store.open('acme', key))!.read())).toString()
      assert.equal(text, text[0]!.repeat(300_000))
    }
  }
})
