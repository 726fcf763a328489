import assert from 'node:assert/strict'
import { test } from 'node:test'
import { freshDatabase } from '#testing'
import { all, chatStream, terminals } from './client.ts'
import { type Agent, eventually, forms, startCluster } from './cluster.ts'
import { countRoundTrips, type RoundTrip, type RoundTrips } from './round-trips.ts'

const chats = 20
/** The round trips of a chat: the start of its run, which checks the key, and its end. */
const mostPerChat = 2
/** The events of a chat that takes longer are stored meanwhile, once in this time: a busy machine makes a chat cost more. */
const storedEachMs = 100
/** The work after a chat comes within a second or so; after a silence of this length nothing more comes. */
const silentMs = 2_000

/** Statements that processes send by the clock, however many chats there are: heartbeats, sweeps, and counts of an interval. */
const byTheClock = [
  /^(instance|gateway|idempotency|webhooks|queue)-/,
  /-tenants$|^tenant-ids$/,
  /^chat-(ingress|keys-used|keys-alive)$/,
  /^(api_keys_alive|limits_changed)$/,
  // A conductor takes its share of a tenant's runs once, and adds up what they have logged and stored.
  /^run-(shares-hold|log-bytes)$/,
  /^stored_bytes_/,
  // Sent once for a burst of wake-ups, and only while another process listens.
  /^kv_/,
  /^LISTEN/,
  /^\/\* jobs \*\//,
]
/** Statements that open and close any unit of work. */
const frame = /^ao_/

const isOfChat = (trip: RoundTrip): boolean => {
  const statements = trip.filter((name) => !frame.test(name))
  return statements.length === 0 || statements.some((name) => !byTheClock.some((pattern) => pattern.test(name)))
}

/** In one of the forms every chat is paid for: money moves with its two statements. */
const billed = { AGENT_ORC_BILLING: 'ledger', AGENT_ORC_ADMIN_TENANT: 'default' }

for (const form of forms) {
  test(`${form}: a streamed chat costs at most ${mostPerChat} round trips to PostgreSQL`, async (t) => {
    const trips = await countRoundTrips(t, await freshDatabase(t))
    const cluster = await startCluster(t, form, {
      env: { POSTGRES_DSN: trips.url, ...(form === 'single' ? billed : {}) },
    })
    const grant = { tenantId: 'default', cents: 10_000 }
    if (form === 'single') assert.equal((await cluster.api('POST', '/api/billing/grants', grant)).status, 201)
    const agent = await cluster.agent('counted')
    const taught = await cluster.agent('taught')
    const skills = { model: 'openai/stand-in', tools: ['calculate'], skills: ['using-*'] }
    assert.equal((await cluster.api('PUT', '/api/profiles/taught', skills)).status, 200)
    await measure(trips, taught, false)
    // The first ones prepare statements and open connections.
    await measure(trips, agent, false)
    for (const [what, one, continued] of [
      ['in a conversation of its own', agent, false],
      ['in a conversation that goes on', agent, true],
      ['with skills in a conversation of its own', taught, false],
    ] as const) {
      await t.test(what, async () => {
        const { cost, stored } = await measure(trips, one, continued)
        const most = mostPerChat * chats + stored
        assert.ok(cost.length <= most, `${cost.length} for ${chats} chats, ${most} at most\n${summary(cost)}`)
        assert.ok(cost.length >= chats, 'the count sees the chats at all')
      })
    }
  })
}

/** Runs one chat after the other; returns their round trips with those of the work after them, and how often their events may have been stored meanwhile. */
async function measure({ seen }: RoundTrips, agent: Agent, continued: boolean) {
  const from = seen.length
  let conversation: unknown
  let stored = 0
  for (let i = 0; i < chats; i++) {
    const began = performance.now()
    const frames = await all(
      await chatStream(agent, {
        message: 'Hello',
        ...(continued && conversation !== undefined ? { conversation_id: conversation } : {}),
      }),
    )
    stored += Math.floor((performance.now() - began) / storedEachMs)
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
  return { cost: seen.slice(from).filter(isOfChat), stored }
}

/** Each kind of round trip with how often it was made, for the message of the test that fails. */
function summary(trips: readonly RoundTrip[]): string {
  const kinds = Map.groupBy(trips, (trip) => trip.join(' + '))
  return [...kinds]
    .toSorted(([, a], [, b]) => b.length - a.length)
    .map(([kind, { length }]) => `${String(length).padStart(5)}  ${kind}`)
    .join('\n')
}
