import assert from 'node:assert/strict'
import { test } from 'node:test'
import { freshDatabase } from '#testing'
import { all, chatStream, terminals } from './client.ts'
import { type Agent, eventually, forms, startCluster } from './cluster.ts'
import { countRoundTrips, type RoundTrip, type RoundTrips } from './round-trips.ts'

const chats = 20
/** The start of its run, and its end. The key is looked at by the start. */
const mostPerChat = 2
/** What follows a chat follows within a second or so; nothing for this long, and nothing more will. */
const silentMs = 2_000

/** What processes do by the clock, however many chats there are: heartbeats, sweeps, and the counts of an interval. */
const byTheClock = [
  /^(instance|gateway|idempotency|webhooks|queue)-/,
  /-tenants$|^tenant-ids$/,
  /^chat-(ingress|keys-used)$/,
  // Once for a burst of wake-ups, and only while another process listens.
  /^kv_/,
  /^LISTEN/,
]
/** What opens and closes any unit of work says nothing about it. */
const frame = /^ao_/

const isOfChat = (trip: RoundTrip): boolean => {
  const statements = trip.filter((name) => !frame.test(name))
  return statements.length === 0 || statements.some((name) => !byTheClock.some((pattern) => pattern.test(name)))
}

for (const form of forms) {
  test(`${form}: a streamed chat costs at most ${mostPerChat} round trips to PostgreSQL`, async (t) => {
    const trips = await countRoundTrips(t, await freshDatabase(t))
    const cluster = await startCluster(t, form, { POSTGRES_DSN: trips.url })
    const agent = await cluster.agent('counted')
    // The first ones prepare statements and open connections.
    await measure(trips, agent, false)
    for (const continued of [false, true]) {
      await t.test(continued ? 'in a conversation that goes on' : 'in a conversation of its own', async () => {
        const cost = await measure(trips, agent, continued)
        assert.ok(cost.length <= mostPerChat * chats, `${cost.length} for ${chats} chats\n${summary(cost)}`)
        assert.ok(cost.length >= chats, 'the count sees the chats at all')
      })
    }
  })
}

/** One chat after the other; what they cost, and what they left to be done after them. */
async function measure({ seen }: RoundTrips, agent: Agent, continued: boolean): Promise<RoundTrip[]> {
  const from = seen.length
  let conversation: unknown
  for (let i = 0; i < chats; i++) {
    const frames = await all(
      await chatStream(agent, {
        message: 'Hello',
        ...(continued && conversation !== undefined ? { conversation_id: conversation } : {}),
      }),
    )
    const [end] = terminals(frames)
    assert.equal(end?.event, 'done', JSON.stringify(end))
    conversation = end.data.conversation_id
  }
  let known = 0
  let since = performance.now()
  await eventually('no more round trips of the chats', async () => {
    const now = seen.slice(from).filter(isOfChat).length
    if (now !== known) since = performance.now()
    known = now
    return performance.now() - since > silentMs
  })
  return seen.slice(from).filter(isOfChat)
}

/** Each kind of round trip with how often it was made, for the message of the test that fails. */
function summary(trips: readonly RoundTrip[]): string {
  const kinds = Map.groupBy(trips, (trip) => trip.join(' + '))
  return [...kinds]
    .toSorted(([, a], [, b]) => b.length - a.length)
    .map(([kind, { length }]) => `${String(length).padStart(5)}  ${kind}`)
    .join('\n')
}
