import { createHash, randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { createParser, type EventSourceMessage } from 'eventsource-parser'
import { type App, definePlugin } from '#kernel'
import { Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { type Hit, Kv } from '#contracts/kv'
import { TenantLimits } from '#contracts/limits'
import { RunDispatch } from '#contracts/runs'
import { databasePlugin, fake, freshDatabase, idempotencyPlugin, testKernel, type TestKernel } from '#testing'
import chat from '../index.ts'
import { scriptedDispatch, type ScriptedDispatch } from './scripted-dispatch.ts'

const hash = (domain: string, token: string): Buffer => createHash('sha256').update(`${domain}\0${token}`).digest()

/** Tokens of a test: `ao_test_` and anything. */
const tokens: Tokens = {
  mint: () => `ao_test_${randomBytes(8).toString('hex')}`,
  wellFormed: (token) => token.startsWith('ao_test_'),
  hash,
}

export interface TestKv extends Kv {
  hits: string[]
}

/** Counts without a window, because no test lasts for one. */
export function testKv(backend: 'redis' | 'memory' = 'memory'): TestKv {
  const counts = new Map<string, number>()
  const kv: TestKv = {
    backend,
    hits: [],
    claim: async () => true,
    async hit(key, limit, seconds): Promise<Hit> {
      kv.hits.push(key)
      const count = counts.get(key) ?? 0
      if (count >= limit) return { allowed: false, count, retryAfterMs: seconds * 1_000 }
      counts.set(key, count + 1)
      return { allowed: true, count: count + 1, retryAfterMs: 0 }
    },
    publish: () => {},
    subscribe: () => () => {},
  }
  return kv
}

export interface GatewayOptions {
  readonly dsn?: string
  readonly dispatch?: ScriptedDispatch
  readonly kv?: TestKv
  readonly limits?: Pick<TenantLimits, 'guard'>
  readonly config?: Record<string, unknown>
  readonly listen?: boolean
}

export interface Gateway {
  readonly kernel: TestKernel
  readonly app: App
  readonly database: Database
  readonly metrics: () => Promise<string>
  readonly dispatch: ScriptedDispatch
  readonly kv: TestKv
  readonly dsn: string
}

/** Hooks that close what was opened last first: the runner calls them in the order they were made. */
function hooksOf(t: TestContext): Pick<TestContext, 'after'> {
  const closing: (() => unknown)[] = []
  t.after(async () => {
    for (const close of closing) await close()
  })
  return { after: (close: () => unknown) => void closing.unshift(close) } as Pick<TestContext, 'after'>
}

/** A migrated database without a gateway on it. */
export async function emptyDatabase(t: TestContext): Promise<Database> {
  const hooks = hooksOf(t)
  const { promise, resolve } = Promise.withResolvers<Database>()
  const peek = definePlugin({
    name: 'peek',
    requires: { database: Database },
    async setup({ deps }) {
      resolve(deps.database)
      return {}
    },
  })
  await testKernel(hooks, [await databasePlugin(await freshDatabase(hooks)), peek], { listeners: [] })
  return promise
}

/** The chat plugin on a real database, with a scripted conductor. */
export async function gateway(t: TestContext, options: GatewayOptions = {}): Promise<Gateway> {
  const hooks = hooksOf(t)
  const dsn = options.dsn ?? (await freshDatabase(hooks))
  const dispatch = options.dispatch ?? scriptedDispatch()
  const kv = options.kv ?? testKv()
  let database: Database | undefined
  let metrics: (() => Promise<string>) | undefined
  const peek = definePlugin({
    name: 'peek',
    requires: { database: Database },
    async setup({ deps, metrics: registry }) {
      database = deps.database
      metrics = () => registry.metrics()
      return {}
    },
  })
  const kernel = await testKernel(
    hooks,
    [
      await databasePlugin(dsn),
      fake(Tokens, tokens),
      fake(Kv, kv),
      fake(RunDispatch, dispatch as RunDispatch),
      await idempotencyPlugin(),
      ...(options.limits ? [fake(TenantLimits, options.limits as TenantLimits)] : []),
      peek,
      // Tests try more wrong keys than anybody may.
      { name: 'chat', plugin: chat, config: { wrongKeysPerMinute: 1_000_000, ...options.config } },
    ],
    { listeners: ['gateway'], listen: options.listen ?? false },
  )
  dispatch.database = database
  return {
    kernel,
    app: kernel.listeners['gateway'] as unknown as App,
    database: database!,
    metrics: metrics!,
    dispatch,
    kv,
    dsn,
  }
}

export interface SeedOptions {
  readonly tenant?: string
  readonly slug?: string
  readonly origins?: readonly string[]
  readonly rpm?: number
  readonly syncSeconds?: number
  readonly exposeToolEvents?: boolean
}

export interface Seeded {
  readonly tenant: string
  readonly id: string
  readonly url: string
  readonly key: string
  readonly auth: { readonly authorization: string }
}

/** A published agent with one key, written straight into the tables. */
export async function publish(database: Database, options: SeedOptions = {}): Promise<Seeded> {
  const {
    tenant = 'acme',
    slug = 'helper',
    origins = [],
    rpm = 1000,
    syncSeconds = 30,
    exposeToolEvents = false,
  } = options
  const id = `pub_${randomBytes(6).toString('hex')}`
  await database.batch(tenant, [
    {
      text: `INSERT INTO profiles (tenant_id, name, id, document) VALUES ($1, $2, $3, '{}')`,
      values: [tenant, id, id],
    },
    {
      text: `INSERT INTO published_agents (tenant_id, id, profile_name, slug, allowed_origins, rate_limit_rpm,
               sync_max_duration_seconds, expose_tool_events) VALUES ($1, $2, $2, $3, $4, $5, $6, $7)`,
      values: [tenant, id, slug, origins, rpm, syncSeconds, exposeToolEvents],
    },
  ])
  const key = await addKey(database, tenant, id)
  return { tenant, id, key, url: `/v1/chat/${tenant}/${slug}`, auth: { authorization: `Bearer ${key}` } }
}

export async function addKey(database: Database, tenant: string, publishedId: string): Promise<string> {
  const key = tokens.mint()
  await database.batch(tenant, [
    {
      text: `INSERT INTO published_agent_keys (tenant_id, id, published_id, label, key_hash) VALUES ($1, $2, $3, 'test', $4::bytea)`,
      values: [tenant, `key_${key}`, publishedId, hash('ao:pub-key:v1', key)],
    },
  ])
  return key
}

/** Runs one statement as `tenant` and resolves to its rows. */
export async function sql<Row extends object>(
  database: Database,
  tenant: string,
  text: string,
  ...values: unknown[]
): Promise<Row[]> {
  const [rows] = await database.batch<[Row[]]>(tenant, [{ text, values }])
  return rows
}

export interface Frame {
  readonly id: string | undefined
  readonly event: string | undefined
  readonly data: Record<string, unknown>
}

/** The events of an SSE body, read by a parser that is not ours. */
export function framesOf(body: string): Frame[] {
  const frames: Frame[] = []
  const parser = createParser({
    onEvent: ({ id, event, data }: EventSourceMessage) => void frames.push({ id, event, data: JSON.parse(data) }),
  })
  parser.feed(body)
  return frames
}

/** Resolves when `condition` holds; the test's own time limit is the only other end. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 5))
}
