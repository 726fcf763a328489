import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createMailbox, type Letter, WaitingTools } from '../hub/mailbox.ts'

const { signal } = new AbortController()
const idsOf = (letters: readonly Letter[]): number[] => letters.map(({ id }) => id)
const turn = () => new Promise<void>((resolve) => setImmediate(resolve))

test('commands that were answered and not acknowledged are answered again after a pause, whatever comes meanwhile', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const mailbox = createMailbox('acme', new WaitingTools())
  mailbox.push({ kind: 'cancel', runId: 'a' })
  assert.deepEqual(idsOf(await mailbox.poll({ after: 0, waitMs: 0, signal })), [1])
  for (let round = 0; round < 2; round++) {
    let again: readonly Letter[] | undefined
    const older = mailbox.poll({ after: 0, waitMs: 0, signal })
    const newer = mailbox.poll({ after: 0, waitMs: 25_000, signal }).then((letters) => (again = letters))
    await assert.rejects(older, { code: 'poll_superseded' })
    mailbox.push({ kind: 'cancel', runId: 'b' })
    await turn()
    assert.equal(again, undefined)
    t.mock.timers.tick(1_000)
    assert.deepEqual(idsOf(await newer), round === 0 ? [1, 2] : [1, 2, 3])
  }
})

test('a poll that says what was taken is answered at once', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const mailbox = createMailbox('acme', new WaitingTools())
  for (let id = 1; id < 4; id++) {
    mailbox.push({ kind: 'cancel', runId: 'a' })
    assert.deepEqual(idsOf(await mailbox.poll({ after: id - 1, waitMs: 25_000, signal })), [id])
  }
  const waiting = mailbox.poll({ after: 3, waitMs: 25_000, signal })
  mailbox.push({ kind: 'shutdown' })
  assert.deepEqual(idsOf(await waiting), [4])
})

test('a poll that waits until an answer is repeated can be ended, too', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const mailbox = createMailbox('acme', new WaitingTools())
  const command = mailbox.push({ kind: 'cancel', runId: 'a' })
  await mailbox.poll({ after: 0, waitMs: 0, signal })
  for (const isTaken of [false, true]) {
    let answer: readonly Letter[] | undefined
    const polling = mailbox.poll({ after: 0, waitMs: 25_000, signal }).then((letters) => (answer = letters))
    await turn()
    // Without a command the poll would go on and wait for one.
    if (isTaken) mailbox.acknowledge(command)
    mailbox.endPoll()
    await turn()
    assert.deepEqual(answer, [])
    await polling
  }
})

test('what is answered again is not serialized again, and a caller that has left gets nothing', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const mailbox = createMailbox('acme', new WaitingTools())
  let read = 0
  const input = { toJSON: () => ({ read: ++read }) }
  mailbox.push({ kind: 'tool', callId: 'c', name: 'shell', input, timeoutMs: 1 })
  const ask = (by = signal) => mailbox.poll({ after: 0, waitMs: 0, signal: by })
  const [first] = await ask()
  const leaving = new AbortController()
  const left = ask(leaving.signal)
  leaving.abort()
  assert.deepEqual(await left, [])
  const again = ask()
  t.mock.timers.tick(1_000)
  assert.equal((await again)[0], first)
  assert.equal(read, 1)
  const closing = ask()
  mailbox.close(new Error('closed') as Parameters<typeof mailbox.close>[0])
  await assert.rejects(closing, /closed/)
})
