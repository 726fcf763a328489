import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { test, type TestContext } from 'node:test'
import { signalTree, stopTree, tailOf, treeOf } from '../processes.ts'

/** A shell that prints a line when its script has got so far, and is killed after the test with all that it started. */
async function shell(t: TestContext, script: string): Promise<number> {
  const child = spawn('/bin/sh', ['-c', script], { stdio: ['ignore', 'pipe', 'ignore'] })
  t.after(async () => signalTree((await treeOf(child.pid!)).toReversed(), 'SIGKILL'))
  await once(child.stdout, 'data')
  return child.pid!
}

const stateOf = async (pid: number): Promise<string> =>
  /^State:\s+(\w)/m.exec(await readFile(`/proc/${pid}/status`, 'utf8'))![1]!

test('the tree of a process has its children and theirs, also those in sessions of their own', async (t) => {
  const pid = await shell(t, 'setsid sh -c "sleep 60 & echo ready; wait" & wait')
  assert.equal((await treeOf(pid)).length, 3)
  assert.deepEqual(await treeOf(0x7fff_ffff), [0x7fff_ffff])
})

test('whoever reads the tree of very many processes gives others a turn', async (t) => {
  const pid = await shell(t, 'sleep 60 & sleep 60 & echo ready; wait')
  let now = 0
  // As if each file took long to read.
  t.mock.method(performance, 'now', () => (now += 20))
  let turns = 0
  const count = (): unknown => (turns++, (next = setImmediate(count)))
  let next = setImmediate(count)
  await treeOf(pid)
  clearImmediate(next)
  assert.ok(turns >= 2, `${turns} turns`)
})

test('a tree that keeps forking stands still once it is stopped, and goes on', async (t) => {
  const fork = 'while :; do (sleep 0.01; exit 0) & sleep 0.001; done'
  const pid = await shell(t, `sh -c '${fork}' & sh -c '${fork}' & echo ready; wait`)
  await stopTree(pid)
  const stopped = await treeOf(pid)
  assert.ok(stopped.length >= 3)
  // D: it waits in the kernel for a child that stands still before it is a program of its own.
  for (const one of stopped) assert.match(await stateOf(one), /[TZD]/)
  assert.deepEqual(await treeOf(pid), stopped)
  signalTree(stopped, 'SIGCONT')
  while ((await treeOf(pid)).every((one) => stopped.includes(one))) await new Promise(setImmediate)
})

test('the end of what a process prints is kept', async () => {
  const stream = Readable.from([Buffer.from('first '), Buffer.alloc(5_000, 'x'), Buffer.from(' last\n')])
  const tail = tailOf([stream, null])
  await new Promise((done) => stream.once('end', done))
  assert.match(tail(), /^x+ last$/)
  assert.ok(tail().length <= 4_096)
})

test('who prints without end has to wait', async () => {
  let given = 0
  const stream = new Readable({
    read() {
      given += 65_536
      this.push(Buffer.alloc(65_536))
    },
  })
  tailOf([stream])
  await new Promise((done) => stream.once('pause', done))
  assert.ok(given <= 1_048_576, `${given} bytes were taken at once`)
  stream.destroy()
})
