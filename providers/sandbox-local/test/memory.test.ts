import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import fs from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { test, type TestContext } from 'node:test'
import { MemoryWatch } from '../bubblewrap/memory.ts'

function shell(t: TestContext): number {
  const child = spawn('/bin/sh', ['-c', 'read -r line'], { stdio: ['pipe', 'ignore', 'ignore'] })
  t.after(() => child.kill('SIGKILL'))
  return child.pid!
}

test('the memory of a sandbox is read in a thread, because a sandbox decides how long that takes', async (t) => {
  const readFileSync = t.mock.method(fs, 'readFileSync')
  const readdirSync = t.mock.method(fs, 'readdirSync')
  syncBuiltinESMExports()
  t.after(() => {
    t.mock.restoreAll()
    syncBuiltinESMExports()
  })
  const watch = new MemoryWatch()
  const small = watch.watch(shell(t), 1_000, () => assert.fail('it uses far less'))
  const why = await new Promise((exceeded) => watch.watch(shell(t), 0, exceeded))
  small()
  assert.equal(why, 'it exceeded its memory limit')
  const read = [...readFileSync.mock.calls, ...readdirSync.mock.calls].map(({ arguments: [path] }) => String(path))
  assert.deepEqual(
    read.filter((path) => path.startsWith('/proc/')),
    [],
  )
})

test('a sandbox whose memory cannot be measured is ended, but not for one look', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const answers = [false, true, false, false]
  let looks = 0
  const watch = new MemoryWatch({
    ask: async () => {
      if (answers[looks++]) return false
      throw new Error('it took too long')
    },
  })
  const ended: string[] = []
  watch.watch(1, 1, (why) => ended.push(why))
  for (let round = 0; round < 6; round++) {
    t.mock.timers.tick(1_000)
    await new Promise(setImmediate)
  }
  assert.deepEqual(ended, ['its memory could not be measured: it took too long'])
  assert.equal(looks, 4)
})
