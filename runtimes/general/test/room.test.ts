import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startExternalServer } from '#testing'
import { createModelConnections } from '#kit/models'
import { connect } from '../tools/connection.ts'
import { AnswerRoom } from '../tools/room.ts'

const mebi = 1024 * 1024

test('what the servers of a tenant answer has a room that its runs share; it is free when all calls of a step are over', async (t) => {
  const { fetch, close } = createModelConnections()
  t.after(close)
  const both = Promise.withResolvers<void>()
  let under = 0
  const server = await startExternalServer(t, {
    large: {
      async run() {
        if (++under === 2) both.resolve()
        await both.promise
        return 'x'.repeat(6 * mebi)
      },
    },
  })
  const room = new AnswerRoom(10 * mebi)
  const open = (tenantId: string) => connect(fetch, { url: server.url }, AbortSignal.timeout(30_000), room.of(tenantId))
  const connection = await open('acme')
  const call = () => connection.call('large', {}, 'c')
  const outcomes = await Promise.all([call(), call()])
  assert.ok(
    outcomes.some(({ ok }) => !ok),
    'there is no room for both',
  )
  assert.equal((await call()).ok, true, 'both are over')
  const busy = room.of('acme')
  assert.equal(busy.take(9 * mebi), true)
  assert.equal((await call()).ok, false, 'another run of the tenant has the room')
  const other = await open('globex')
  assert.equal((await other.call('large', {}, 'c')).ok, true)
  busy.keep(0)
  await Promise.all([connection.close(), other.close()])
  const late = room.of('acme')
  late.close()
  assert.equal(late.take(mebi), true)
  assert.equal(room.of('acme').take(10 * mebi), true, 'nothing is held any more')
})
