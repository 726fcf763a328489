import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { Worker } from 'node:worker_threads'
import pg from 'pg'
import type { Heartbeat, HeartbeatOptions } from '#contracts/database'
import { freshDatabase, startProxy } from '#testing'
import { openHeartbeat } from '../heartbeat.ts'

const everyMs = 10
const renew = { text: 'UPDATE pulses SET beats = beats + 1, said = $2 WHERE id = $1' }

/** Bounded, so that a broken promise fails its test instead of hanging the run. */
async function until(check: () => Promise<boolean> | boolean): Promise<void> {
  for (let left = 3_000; !(await check()); left--) {
    assert.ok(left > 0, 'it never happened')
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}

/** `direct`: not through the proxy, which is in this thread. */
async function open(t: TestContext, options: Partial<HeartbeatOptions> = {}, address?: 'direct') {
  // Hooks run in the order in which they are registered: these before the database goes.
  const ends: (() => Promise<void>)[] = []
  t.after(() => Promise.all(ends.map((end) => end())))
  const dsn = await freshDatabase(t)
  const between = await startProxy(t, dsn)
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  ends.push(() => client.end())
  await client.query('CREATE TABLE pulses (id text PRIMARY KEY, beats int NOT NULL DEFAULT 0, said text)')
  await client.query(`INSERT INTO pulses (id) VALUES ('a'), ('b')`)
  const told: string[] = []
  const heartbeat = openHeartbeat(address === 'direct' ? dsn : between.url, {
    renew,
    everyMs,
    hungMs: 60_000,
    onLost: () => told.push('lost'),
    onFailure: () => told.push('failed'),
    ...options,
  })
  ends.push(() => heartbeat.close())
  const beats = async (id = 'a') =>
    (await client.query<{ beats: number }>('SELECT beats FROM pulses WHERE id = $1', [id])).rows[0]!.beats
  const sessions = async () => {
    const text = `SELECT 1 FROM pg_stat_activity WHERE application_name = 'agent-orc heartbeat' AND datname = current_database()`
    return (await client.query(text)).rows.length
  }
  return { dsn, between, client, told, heartbeat, beats, sessions }
}

/** Blocks this thread until the row was renewed `more` times from now on, as another thread sees it; false when it never is. */
function blockUntilRenewed(dsn: string, more: number): boolean {
  const seen = new Int32Array(new SharedArrayBuffer(4))
  const watcher = new Worker(
    `const { workerData: { dsn, more, seen, pg } } = require('node:worker_threads')
     const { Client } = require(pg)
     const client = new Client({ connectionString: dsn })
     const beats = async () => (await client.query("SELECT beats FROM pulses WHERE id = 'a'")).rows[0].beats
     void (async () => {
       await client.connect()
       const before = await beats()
       while (await beats() < before + more);
       await client.end()
       Atomics.store(seen, 0, 1)
       Atomics.notify(seen, 0)
     })()`,
    { eval: true, workerData: { dsn, more, seen, pg: new URL(import.meta.resolve('pg')).pathname } },
  )
  Atomics.wait(seen, 0, 0, 20_000)
  void watcher.terminate()
  return Atomics.load(seen, 0) === 1
}

const beating = async (heartbeat: Heartbeat) => {
  heartbeat.pulse(['a', 'x'])
  await until(() => heartbeat.beats)
}

test('the lease is renewed while the main thread is blocked, and nothing is begun before the first pulse', async (t) => {
  const { heartbeat, dsn, sessions, beats } = await open(t, {}, 'direct')
  assert.equal(await sessions(), 0)
  assert.equal(heartbeat.beats, false)
  await beating(heartbeat)
  assert.ok(blockUntilRenewed(dsn, 20), 'twenty more beats while nothing else of this process runs')
  assert.ok((await beats()) > 20)
})

test('a thread that hears no pulse for too long stops, and goes on with the next one', async (t) => {
  const { heartbeat, beats } = await open(t, { hungMs: 5 * everyMs })
  await beating(heartbeat)
  // Without pulses the count comes to rest.
  let last = -1
  await until(async () => {
    const before = last
    last = await beats()
    await new Promise((resolve) => setTimeout(resolve, 20 * everyMs))
    return before === last
  })
  heartbeat.pulse(['a', 'again'])
  await until(async () => (await beats()) > last)
})

test('who lost what it renews is told once, and renews what the next pulse names', async (t) => {
  const { heartbeat, client, told, beats } = await open(t)
  await beating(heartbeat)
  await client.query(`DELETE FROM pulses WHERE id = 'a'`)
  await until(() => told.length > 0)
  assert.equal(heartbeat.beats, false)
  heartbeat.pulse(['b', 'y'])
  await until(() => heartbeat.beats)
  await until(async () => (await beats('b')) > 1)
  assert.deepEqual(told, ['lost'])
  const { rows } = await client.query(`SELECT said FROM pulses WHERE id = 'b'`)
  assert.deepEqual(rows, [{ said: 'y' }])
})

test('while the database is away it says so and goes on trying', async (t) => {
  const { heartbeat, between, told, beats } = await open(t)
  await beating(heartbeat)
  between.cut()
  await until(() => told.includes('failed'))
  assert.equal(heartbeat.beats, false)
  between.heal()
  await until(() => heartbeat.beats)
  const before = await beats()
  await until(async () => (await beats()) > before)
  assert.deepEqual(told, ['failed'], 'once for an outage')
})

test('it ends in good order: its connection is closed, and a pulse that comes later starts nothing', async (t) => {
  const { heartbeat, sessions } = await open(t)
  await beating(heartbeat)
  assert.equal(await sessions(), 1)
  await heartbeat.close()
  await until(async () => (await sessions()) === 0)
  heartbeat.pulse(['a', 'late'])
  assert.equal(heartbeat.beats, false)
  await heartbeat.close()
})
