import assert from 'node:assert/strict'
import { test } from 'node:test'
import pg from 'pg'
import { freshDatabase, startProxy, type Verdict } from '#testing'
import { check } from '../chaos/checker.ts'
import { countOpen, readStored } from '../chaos/stored.ts'
import { chat } from '../e2e/client.ts'
import { eventually, startCluster } from '../e2e/cluster.ts'

// A statement marks a place in the program: the process dies while the statement is on its way, before or after its commit.
const points = {
  conductor: [
    ['run-start-chat', 'claim'],
    ['run-append', 'first event'],
    ['run-finish-chat', 'finish'],
  ],
  // The gateway writes nothing of a chat itself: it dies while the conductor writes.
  gateway: [
    ['run-start-chat', 'begin'],
    ['run-finish-chat', 'answer'],
  ],
} as const
const moments: Readonly<Record<keyof typeof points, readonly (readonly [Verdict, string])[]>> = {
  conductor: [
    ['cut', 'before its commit'],
    ['cut_answer', 'after its commit'],
  ],
  gateway: [['pass', 'under way']],
}

/** Slow enough that its first events are stored before its last. */
const slow = { text: 'one two three four five six seven eight nine ten eleven twelve', delayMs: 25 }

for (const role of ['conductor', 'gateway'] as const) {
  const names = points[role].map(([, what]) => what).join(', ')
  test(`R5: kill -9 of the ${role} at ${names}: everything ends once and the session is free`, async (t) => {
    const dsn = await freshDatabase(t)
    const way = await startProxy(t, dsn)
    const cluster = await startCluster(t, 'four', { env: { POSTGRES_DSN: way.url }, apart: [role] })
    const agent = await cluster.agent('fragile')
    const open = await chat(agent, { message: 'Hi' })
    assert.equal(open.status, 200, JSON.stringify(open.body))
    for (const [statement, what] of points[role]) {
      for (const [verdict, when] of moments[role]) {
        const point = `${what} ${when}`
        const met = Promise.withResolvers<void>()
        way.inspect((bytes) => {
          if (!bytes.includes(`\0${statement}\0`)) return 'pass'
          way.inspect(undefined)
          met.resolve()
          return verdict
        })
        cluster.model.next(slow)
        const lost = chat(agent, { message: point }).catch(() => undefined)
        await met.promise
        // The proxy keeps the answer back, so the process dies without knowing that its statement was committed.
        if (verdict === 'cut_answer') await committed(dsn, statement)
        await cluster.kill(role)
        await cluster.start(role)
        if (role === 'conductor') await expireLeases(dsn)
        await lost
        await eventually(`${point}: everything ends`, async () => (await countOpen(dsn)) === 0)
        assert.deepEqual(check(await readStored(dsn), []), [], point)
        const next = await eventually(`${point}: chats go on`, async () => {
          const reply = await chat(agent, { message: 'again', conversation_id: open.body.conversation_id })
          return reply.status === 200 ? reply : undefined
        })
        assert.equal(next.body.conversation_id, open.body.conversation_id)
      }
    }
  })
}

/** Ends the lease of the dead process, so that the test need not wait for it. */
async function expireLeases(dsn: string): Promise<void> {
  await query(
    dsn,
    `UPDATE instances SET lease_until = now() - interval '1 second'
     WHERE id <> (SELECT id FROM instances WHERE kind = 'conductor' ORDER BY started_at DESC LIMIT 1)`,
  )
}

/** Resolves when no transaction is under way any more: the statement that was let through is committed. */
const committed = (dsn: string, statement: string): Promise<unknown> =>
  eventually(`${statement} is committed`, async () => {
    const active = await query(
      dsn,
      `SELECT FROM pg_stat_activity
       WHERE datname = current_database() AND application_name = 'agent-orc' AND state <> 'idle'`,
    )
    return active.length === 0
  })

async function query(dsn: string, text: string): Promise<unknown[]> {
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    return (await client.query(text)).rows
  } finally {
    await client.end()
  }
}
