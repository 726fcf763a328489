import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { retry } from '#kit'

const quick = { firstMs: 1, longestMs: 2 }

/** Fails so many times, each with the number of its attempt. */
function failing(times: number) {
  const made: number[] = []
  const attempt = async (): Promise<string> => {
    made.push(made.length + 1)
    if (made.length <= times) throw new Error(String(made.length))
    return 'done'
  }
  return { made, attempt }
}

test('what fails is tried again until it succeeds; what does not pass is rejected with as it is', async () => {
  const { made, attempt } = failing(3)
  assert.equal(await retry(attempt, quick), 'done')
  assert.deepEqual(made, [1, 2, 3, 4])
  const seen: [unknown, number][] = []
  const mayPass = (error: unknown, count: number): boolean => seen.push([(error as Error).message, count]) < 2
  await assert.rejects(retry(failing(9).attempt, { ...quick, mayPass }), { message: '2' })
  assert.deepEqual(seen, [
    ['1', 1],
    ['2', 2],
  ])
})

test('any error counts: a mistake of ours, and what is no error', async () => {
  for (const thrown of [new TypeError('undefined is not a function'), 'text', undefined]) {
    let count = 0
    const attempt = async (): Promise<number> => {
      if (++count < 3) throw thrown
      return count
    }
    assert.equal(await retry(attempt, quick), 3)
    const rejected = retry(() => Promise.reject(thrown as Error), { ...quick, mayPass: () => false })
    assert.equal(await rejected.catch((error: unknown) => error), thrown)
  }
})

test('attempts end with their number and with their time', async () => {
  const counted = failing(9)
  await assert.rejects(retry(counted.attempt, { ...quick, most: 2 }), { message: '3' })
  assert.deepEqual(counted.made, [1, 2, 3])
  await assert.rejects(retry(failing(Infinity).attempt, { ...quick, withinMs: 20 }), Error)
})

test('who failed says how long it wants to be left alone; longer than there is time for is the end', async () => {
  const order: string[] = []
  const { attempt } = failing(1)
  const sooner = sleep(20).then(() => order.push('sooner'))
  assert.equal(await retry(attempt, { ...quick, mayPass: () => 40 }), 'done')
  order.push('done')
  await sooner
  assert.deepEqual(order, ['sooner', 'done'])
  const impatient = failing(1)
  await assert.rejects(retry(impatient.attempt, { ...quick, withinMs: 60_000, mayPass: () => 60_001 }), Error)
  assert.equal(impatient.made.length, 1)
})

test('a signal ends it, while it waits and while it tries', async () => {
  const reason = new Error('enough')
  const waiting = new AbortController()
  const long = { firstMs: 60_000, longestMs: 60_000 }
  const mayPass = (): boolean => {
    setImmediate(() => waiting.abort(reason))
    return true
  }
  const { made, attempt } = failing(9)
  await assert.rejects(retry(attempt, { ...long, signal: waiting.signal, mayPass }), reason)
  assert.deepEqual(made, [1])
  await assert.rejects(retry(attempt, { ...long, signal: waiting.signal }), reason)
  assert.deepEqual(made, [1])
  const trying = new AbortController()
  const late = async (): Promise<void> => trying.abort(reason)
  await assert.rejects(retry(late, { ...long, signal: trying.signal }), reason)
})

test('stopping ends the waiting: the attempt that follows is the last, and counts', async () => {
  const long = { firstMs: 60_000, longestMs: 60_000 }
  for (const [failures, outcome] of [
    [1, 'done'],
    [2, '2'],
  ] as const) {
    const stopping = new AbortController()
    const mayPass = (): boolean => {
      setImmediate(() => stopping.abort())
      return true
    }
    const { made, attempt } = failing(failures)
    const answer = await retry(attempt, { ...long, stopping: stopping.signal, mayPass }).catch(
      ({ message }: Error) => message,
    )
    assert.deepEqual([answer, made], [outcome, [1, 2]])
    // Once it is stopping, there is one attempt.
    const after = failing(1)
    await assert.rejects(retry(after.attempt, { ...long, stopping: stopping.signal }), { message: '1' })
    assert.deepEqual(after.made, [1])
  }
  const stopping = new AbortController()
  const stops = async (): Promise<string> => {
    stopping.abort()
    return 'done'
  }
  assert.equal(await retry(stops, { ...long, stopping: stopping.signal }), 'done')
})
