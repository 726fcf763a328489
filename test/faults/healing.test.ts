import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { startPostgres } from '#kit/postgres'
import { freshDatabase, redisForTests, startProxy } from '#testing'
import { chat } from '../e2e/client.ts'
import { type Cluster, eventually, startCluster } from '../e2e/cluster.ts'

/** Longer than all limits of a request: a request that takes longer hangs. */
const bound = () => AbortSignal.timeout(20_000)

interface Ready {
  readonly status: number
  readonly checks: Readonly<Record<string, string>>
}

async function ready(url: string): Promise<Ready> {
  const reply = await fetch(`${url}/readyz`, { signal: bound() })
  const { checks } = (await reply.json()) as { checks: Record<string, string> }
  return { status: reply.status, checks }
}

/** Waits for 503: an answer is cached for a second, so the first one may be older than the fault. */
const notReady = (url: string): Promise<Ready['checks']> =>
  eventually(`${url} is not ready`, async () => {
    const { status, checks } = await ready(url)
    return status === 503 ? checks : undefined
  })

async function alive(...urls: string[]): Promise<void> {
  for (const url of urls) assert.equal((await fetch(`${url}/healthz`, { signal: bound() })).status, 200, url)
}

async function assertAway(cluster: Cluster, agent: Parameters<typeof chat>[0], check: string): Promise<void> {
  for (const url of [cluster.conductorUrl, cluster.gatewayUrl]) {
    const checks = await notReady(url)
    assert.notEqual(checks[check], 'ok', url)
  }
  await alive(cluster.conductorUrl, cluster.gatewayUrl)
  const replies = [await chat(agent, { message: 'Hi' }), await cluster.api('GET', '/api/runs')]
  for (const { status, body } of replies) {
    assert.equal(status, 503, JSON.stringify(body))
    assert.equal((body as { error: string }).error, 'unavailable')
  }
}

const whole = (cluster: Cluster): Promise<unknown> =>
  eventually('conductor and gateway are ready', async () => {
    const both = await Promise.all([ready(cluster.conductorUrl), ready(cluster.gatewayUrl)])
    return both.every(({ status }) => status === 200)
  })

test('PostgreSQL and Redis away at boot, then cut and hung mid-flight: documented 503s or none, readiness names them, all heals without a restart', async (t) => {
  const redisUrl = await redisForTests(t)
  if (redisUrl === undefined) return
  const postgres = await startProxy(t, await freshDatabase(t))
  const redis = await startProxy(t, redisUrl)
  postgres.cut()
  redis.cut()
  // With a master key everything is switched on that looks at the database at its start.
  const cluster = await startCluster(t, 'four', {
    env: {
      POSTGRES_DSN: postgres.url,
      REDIS_URL: redis.url,
      GATEWAY_RATE_LIMIT_BACKEND: 'redis',
      AGENT_ORC_MASTER_KEY: randomBytes(32).toString('base64'),
    },
    apart: ['conductor', 'gateway'],
  })
  const pids = [cluster.pid('conductor'), cluster.pid('gateway')]
  for (const url of [cluster.conductorUrl, cluster.gatewayUrl]) {
    const { checks } = await ready(url)
    assert.match(checks['database']!, /database/, url)
    assert.match(checks['kv']!, /Redis/, url)
  }
  await alive(cluster.conductorUrl, cluster.gatewayUrl)
  const refused = await cluster.api<{ error: string }>('GET', '/api/runs')
  assert.deepEqual([refused.status, refused.body.error], [503, 'unavailable'])

  postgres.heal()
  redis.heal()
  await whole(cluster)
  const agent = await cluster.agent('healed')
  const first = await chat(agent, { message: 'Hi' })
  assert.equal(first.status, 200, JSON.stringify(first.body))

  postgres.cut()
  await assertAway(cluster, agent, 'database')
  postgres.heal()
  await whole(cluster)

  postgres.hang()
  await notReady(cluster.gatewayUrl)
  postgres.heal()
  await whole(cluster)

  // Redis is not needed: no chat fails, from the first moment on.
  for (const fault of ['cut', 'hang'] as const) {
    redis[fault]()
    const replies = await Promise.all(Array.from({ length: 5 }, () => chat(agent, { message: 'Hi' })))
    for (const { status, body } of replies) assert.equal(status, 200, JSON.stringify(body))
    for (const url of [cluster.conductorUrl, cluster.gatewayUrl]) {
      await eventually('readiness names what stands in', async () => {
        const { status, checks } = await ready(url)
        assert.equal(status, 200)
        return /PostgreSQL stands in/.test(checks['kv']!)
      })
    }
    redis.heal()
    await eventually('Redis is used again', async () => {
      const both = await Promise.all([ready(cluster.conductorUrl), ready(cluster.gatewayUrl)])
      return both.every(({ checks }) => checks['kv'] === 'ok')
    })
  }

  const conversation_id = first.body.conversation_id
  const again = await eventually('the conversation goes on', async () => {
    const reply = await chat(agent, { message: 'Still there?', conversation_id })
    return reply.status === 200 ? reply : undefined
  })
  assert.equal(again.body.conversation_id, conversation_id)
  assert.deepEqual([cluster.pid('conductor'), cluster.pid('gateway')], pids, 'nobody was restarted')
})

test('a PostgreSQL server that is stopped, or was never started, is used as soon as it runs', async (t) => {
  const directory = await mkdtemp(join(tmpdir(), 'ao-heal-'))
  const dataDir = join(directory, 'postgres')
  const settings = { fsync: 'off' }
  // Once, to make its folder and its role; then it is stopped before anybody has seen it.
  let server = await startPostgres({ dataDir, settings })
  t.after(async () => {
    await server.stop()
    await rm(directory, { recursive: true, force: true })
  })
  const dsn = server.dsn()
  await server.stop()
  const cluster = await startCluster(t, 'four', { env: { POSTGRES_DSN: dsn } })
  await assert.rejects(cluster.agent('early'), /503 .*unavailable/)
  server = await startPostgres({ dataDir, settings })
  await whole(cluster)
  const agent = await cluster.agent('late')
  assert.equal((await chat(agent, { message: 'Hi' })).status, 200)
  await server.stop()
  await assertAway(cluster, agent, 'database')
  server = await startPostgres({ dataDir, settings })
  await whole(cluster)
  assert.equal((await chat(agent, { message: 'Hi' })).status, 200)
})
