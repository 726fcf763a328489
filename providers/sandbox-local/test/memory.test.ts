import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import fs from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { test, type TestContext } from 'node:test'
import { AskedThread } from '#kit/asked-thread'
import { MemoryWatch } from '../bubblewrap/memory.ts'
import type { Answer, Question } from '../bubblewrap/memory-thread.ts'

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
  // All are of one tenant, so that their looks wait for each other.
  const root = shell(t)
  const watched = (limitMb: number) => ({ tenantId: 'acme', root, limitMb })
  const small = Array.from({ length: 100 }, () => watch.watch(watched(1_000), assert.fail))
  const why = await new Promise((exceeded) => watch.watch(watched(0), exceeded))
  for (const stop of small) stop()
  assert.equal(why, 'it exceeded its memory limit')
  const read = [...readFileSync.mock.calls, ...readdirSync.mock.calls].map(({ arguments: [path] }) => String(path))
  assert.deepEqual(
    read.filter((path) => path.startsWith('/proc/')),
    [],
  )
})

test('a look has an end, because a sandbox decides how long it takes', async () => {
  const thread = new AskedThread<Question, Answer>({
    module: new URL('../bubblewrap/memory-thread.ts', import.meta.url),
    name: 'memory',
    resourceLimits: {},
    mostWaiting: 3,
    tooMany: () => new Error('too many'),
    died: (why) => new Error(why),
  })
  const ask = (limitKb: number, mostMs: number) => thread.ask('acme', { root: process.pid, limitKb, mostMs })
  assert.deepEqual(await Promise.all([ask(1e9, 0), ask(1e9, 1e9), ask(0, 1e9)]), ['late', 'below', 'above'])
})

type Look = { readonly key: string } & PromiseWithResolvers<Answer>

/** A watch whose looks are answered by the test. */
function watchByHand(t: TestContext) {
  t.mock.timers.enable({ apis: ['setTimeout', 'setInterval'] })
  const looks: Look[] = []
  const watch = new MemoryWatch({
    ask(key) {
      const look = { key, ...Promise.withResolvers<Answer>() }
      looks.push(look)
      return look.promise
    },
  })
  const ended: string[] = []
  const pass = async (ms: number): Promise<void> => {
    t.mock.timers.tick(ms)
    await new Promise(setImmediate)
  }
  const begin = (root: number) => watch.watch({ tenantId: 'acme', root, limitMb: 1 }, (why) => ended.push(why))
  return { looks, ended, pass, begin }
}

test('tenants take turns, however many sandboxes each has', async (t) => {
  const { looks, pass, begin } = watchByHand(t)
  begin(1)
  begin(2)
  await pass(1_000)
  assert.deepEqual(
    looks.map(({ key }) => key),
    ['acme', 'acme'],
  )
})

test('a sandbox whose memory cannot be measured in time is ended, but not for one look', async (t) => {
  const { looks, ended, pass, begin } = watchByHand(t)
  begin(1)
  const answers = [new Error('it died'), 'below', 'late', 'below', 'late', new Error('it died')] as const
  for (const [at, answer] of answers.entries()) {
    await pass(1_000)
    assert.equal(looks.length, at + 1)
    assert.deepEqual(ended, [])
    if (answer instanceof Error) looks[at]!.reject(answer)
    else looks[at]!.resolve(answer)
    await pass(0)
  }
  assert.deepEqual(ended, ['its memory could not be measured: it died'])
  await pass(60_000)
  assert.equal(looks.length, answers.length)
})

test('a sandbox that waits too long for its turn is ended, because it may use any memory meanwhile', async (t) => {
  const { looks, ended, pass, begin } = watchByHand(t)
  begin(1)
  await pass(1_000)
  await pass(10_000)
  looks[0]!.resolve('below')
  await pass(0)
  // What others took once is forgotten when it was measured.
  await pass(1_000)
  await pass(10_000)
  assert.deepEqual(ended, [])
  await pass(10_000)
  assert.deepEqual(ended, ['its memory could not be measured: it waited too long for its turn'])
  looks[1]!.resolve('above')
  await pass(60_000)
  assert.deepEqual([ended.length, looks.length], [1, 2])
})
