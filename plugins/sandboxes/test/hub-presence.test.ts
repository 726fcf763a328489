import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createPresence } from '../hub/presence.ts'

const pause = new Int32Array(new SharedArrayBuffer(4))

test('a worker is not given up because its runner was busy: what it sent meanwhile is heard first', async () => {
  const presence = createPresence(50)
  let lost = 0
  const gone = new Promise<void>((resolve) =>
    presence.watch(() => {
      lost++
      resolve()
    }),
  )
  // The runner is blocked for a while. At the end the check of the worker is overdue, and a poll waits unread in a socket.
  Atomics.wait(pause, 0, 0, 1_200)
  await new Promise((resolve) => setImmediate(resolve))
  assert.equal(lost, 0)
  const end = presence.polls()
  assert.equal(presence.present, true)
  end()
  await gone
  assert.equal(presence.present, false)
})
