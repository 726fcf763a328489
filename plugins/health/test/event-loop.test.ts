import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { LoopWatch, type Step } from '../event-loop.ts'

function watched(t: TestContext) {
  const steps: Step[] = []
  const watch = new LoopWatch({ stepped: (step) => steps.push(step) })
  watch.start()
  t.after(() => watch.stop())
  return { steps, watch }
}

/** Takes so much of this thread's processor, however long the machine has it wait. */
function work(ms: number, part: () => unknown = () => {}): void {
  const since = process.threadCpuUsage()
  for (let spent = 0; spent < ms;) {
    part()
    const { user, system } = process.threadCpuUsage(since)
    spent = (user + system) / 1_000
  }
}

/** Steps are told when the loop has turned a few times. */
const turns = async (): Promise<void> => {
  for (let i = 0; i < 3; i++) await sleep(10)
}

test('60 ms of work in one step are told', async (t) => {
  const { steps } = watched(t)
  await turns()
  work(60)
  await turns()
  assert.ok(
    steps.some(({ cpuMs }) => cpuMs > 50),
    JSON.stringify(steps),
  )
})

test('a process that slept through its looks did nothing', async (t) => {
  const { steps } = watched(t)
  await turns()
  steps.length = 0
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 100)
  await turns()
  assert.ok(
    steps.every(({ cpuMs }) => cpuMs < 50),
    JSON.stringify(steps),
  )
})

test('the collector is no step of ours', async (t) => {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  const held = Array.from({ length: 300_000 }, (_, i) => ({ i, text: [`${i}`] }))
  const { steps } = watched(t)
  await turns()
  steps.length = 0
  work(100, collect)
  await turns()
  assert.equal(held.length, 300_000)
  assert.ok(
    steps.every(({ cpuMs }) => cpuMs < 50),
    JSON.stringify(steps),
  )
})

test('turns of 5 ms each are no long step, however many they are', async (t) => {
  const { steps } = watched(t)
  await turns()
  steps.length = 0
  for (let i = 0; i < 40; i++) {
    work(5)
    await new Promise((resolve) => setImmediate(resolve))
  }
  await turns()
  assert.ok(
    steps.every(({ cpuMs }) => cpuMs < 50),
    JSON.stringify(steps),
  )
})

test('a step is told with what was said to be done, and begins there', async (t) => {
  const { steps, watch } = watched(t)
  await turns()
  steps.length = 0
  work(80)
  watch.look('the request')
  work(60)
  watch.look()
  work(80)
  await turns()
  const told = steps.filter(({ during }) => during === 'the request')
  assert.equal(told.length, 1)
  // What was done before it is 80 ms more. Where others want the processor, too, the system counts some milliseconds with a neighbour.
  assert.ok(told[0]!.cpuMs > 30 && told[0]!.cpuMs < 110, JSON.stringify(steps))
})
