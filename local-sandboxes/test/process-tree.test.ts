import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { test, type TestContext } from 'node:test'
import { signalTree, stopTree, treeOf } from '#local-sandboxes'

/** A shell that prints a line when its script has got so far, and is killed after the test with all that it started. */
async function shell(t: TestContext, script: string): Promise<number> {
  const child = spawn('/bin/sh', ['-c', script], { stdio: ['ignore', 'pipe', 'ignore'] })
  t.after(() => signalTree(treeOf(child.pid!).toReversed(), 'SIGKILL'))
  await once(child.stdout, 'data')
  return child.pid!
}

const stateOf = async (pid: number): Promise<string> =>
  /^State:\s+(\w)/m.exec(await readFile(`/proc/${pid}/status`, 'utf8'))![1]!

test('the tree of a process has its children and theirs, also those in sessions of their own', async (t) => {
  const pid = await shell(t, 'setsid sh -c "sleep 60 & echo ready; wait" & wait')
  assert.equal(treeOf(pid).length, 3)
  assert.deepEqual(treeOf(0x7fff_ffff), [0x7fff_ffff])
})

test('a tree that keeps forking stands still once it is stopped, and goes on', async (t) => {
  const fork = 'while :; do (sleep 0.01; exit 0) & sleep 0.001; done'
  const pid = await shell(t, `sh -c '${fork}' & sh -c '${fork}' & echo ready; wait`)
  await stopTree(pid)
  const stopped = treeOf(pid)
  assert.ok(stopped.length >= 3)
  // D: it waits in the kernel for a child that stands still before it is a program of its own.
  for (const one of stopped) assert.match(await stateOf(one), /[TZD]/)
  assert.deepEqual(treeOf(pid), stopped)
  signalTree(stopped, 'SIGCONT')
  while (treeOf(pid).every((one) => stopped.includes(one))) await new Promise(setImmediate)
})
