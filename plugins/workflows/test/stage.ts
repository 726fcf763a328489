import { randomBytes } from 'node:crypto'
import { createServer, type IncomingMessage } from 'node:http'
import { mkdtemp, rm } from 'node:fs/promises'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { definePlugin, type Running } from '#kernel'
import { Database, type TenantTx } from '#contracts/database'
import { TenantLimits } from '#contracts/limits'
import { TenantData, type TenantDataStore } from '#contracts/retention'
import { asOwnHosts, freshDatabase, testRole } from '#testing'

/** What the tests read of an answer. */
// oxlint-disable-next-line typescript/no-explicit-any -- answers of every shape; assertions look at them.
export type Body = any
export interface Answer {
  readonly status: number
  readonly body: Body
}
export type Call = (method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE', url: string, body?: unknown) => Promise<Answer>

export interface Stage {
  readonly dsn: string
  /** The folder of its object store. */
  readonly objects: string
  readonly kernel: Running
  readonly database: Database
  readonly limits: TenantLimits
  /** Sweeps what no run has any more of the tenant `default` out of the object store. */
  sweepObjects(): Promise<void>
  readonly call: Call
  /** Has this conductor look at a schedule. */
  wake(scheduleId: string, tenantId?: string): Promise<void>
  /** All that a stream says, until it ends. */
  stream(id: string, after?: number): Promise<string>
  /** The owner of another tenant, which is made for it. */
  other(id: string): Promise<Call>
  member(): Promise<Call>
  /** Creates a run of nodes and resolves to its id. */
  run(nodes: readonly object[], more?: object): Promise<string>
  /** The snapshot of a run once `until` holds for it. */
  until(id: string, holds: (run: Body) => boolean): Promise<Body>
  /** The snapshot of a run that is over or paused. */
  rests(id: string): Promise<Body>
}

/**
 * All roles in one process, on a database and an object store of its own or those of another stage. `own`: URLs of MCP servers of this machine that
 * tenants may enter.
 */
export async function stage(
  t: Pick<TestContext, 'after'>,
  { dsn, objects, own = [] }: Partial<Pick<Stage, 'dsn' | 'objects'>> & { readonly own?: readonly string[] } = {},
): Promise<Stage> {
  const dir = objects ?? (await mkdtemp(join(tmpdir(), 'objects-')))
  if (objects === undefined) t.after(() => rm(dir, { recursive: true, force: true }))
  const parts: { database: Database; limits: TenantLimits; data: ReadonlyMap<string, TenantDataStore> }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, limits: TenantLimits, data: TenantData },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  const bootstrap = randomBytes(24).toString('hex')
  const where = dsn ?? (await freshDatabase(t))
  const variables = {
    POSTGRES_DSN: where,
    LOG_LEVEL: 'error',
    AGENT_ORC_BOOTSTRAP_KEY: bootstrap,
    AGENT_ORC_BOOTSTRAP: 'always',
    AGENT_ORC_ADMIN_TENANT: 'default',
    AGENT_ORC_MASTER_KEY: masterKey,
    AGENT_ORC_MCP_ALLOW_HOSTS: asOwnHosts(own),
    // Whatever port a test listens on.
    AGENT_ORC_WORKFLOW_ALLOW_HOSTS: [...ports].map((port) => `127.0.0.1:${port}=*`).join(','),
  }
  // Stages on one database tell each other of what moves, as conductors do: a stream would look by itself after seconds only.
  const settings = { kv: { withoutRedis: 'database' }, 'storage-disk': { dir } }
  const kernel = await testRole(t, 'dev', [probe], variables, { settings })
  const callerWith =
    (token: string): Call =>
    async (method, url, body) => {
      const reply = await kernel.listeners['conductor']!.inject({
        method,
        url,
        headers: {
          authorization: `Bearer ${token}`,
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        ...(body === undefined ? {} : { payload: JSON.stringify(body) }),
      })
      return { status: reply.statusCode, body: reply.body === '' ? {} : JSON.parse(reply.body) }
    }
  const call = callerWith(bootstrap)
  const until = async (id: string, holds: (run: Body) => boolean): Promise<Body> => {
    for (;;) {
      const { body } = await call('GET', `/api/workflows/runs/${id}`)
      if (holds(body)) return body
      await new Promise((resolve) => setTimeout(resolve, 10))
    }
  }
  // Streams want a real connection.
  let url: string | undefined
  return {
    dsn: where,
    objects: dir,
    kernel,
    database: parts[0]!.database,
    limits: parts[0]!.limits,
    sweepObjects: async () => {
      const sweep = (tx: TenantTx) =>
        parts[0]!.data.get('linked objects')!.sweep!(tx, (ask) => ask(new AbortController().signal))
      while ((await parts[0]!.database.as('reads').tenant('default', sweep)).more);
    },
    call,
    async wake(scheduleId, tenantId = 'default') {
      const text = `INSERT INTO pgboss.job (name, data, policy, expire_seconds, deletion_seconds, keep_until, retry_limit, singleton_key, heartbeat_seconds)
        VALUES ('workflows', $1, 'short', 900, 60, now() + interval '1 day', 10, $2, 30)`
      const what = JSON.stringify({ tenantId, scheduleId })
      const notify = `SELECT pg_notify('pgboss_' || left(encode(sha224('pgboss'::bytea), 'hex'), 24), 'workflows')`
      await parts[0]!.database.systemBatch([{ text, values: [what, randomBytes(8).toString('hex')] }, { text: notify }])
    },
    async stream(id, after) {
      url ??= await kernel.listeners['conductor']!.listen({ port: 0, host: '127.0.0.1' })
      const answer = await fetch(`${url}/api/workflows/runs/${id}/stream`, {
        headers: {
          authorization: `Bearer ${bootstrap}`,
          ...(after === undefined ? {} : { 'last-event-id': String(after) }),
        },
      })
      return answer.text()
    },
    async other(id) {
      const { body } = await call('POST', '/api/tenants', { id, name: id, ownerKey: true })
      if (body.ownerKey === undefined) throw new Error(`no tenant: ${JSON.stringify(body)}`)
      return callerWith(body.ownerKey.token)
    },
    async member() {
      const { body } = await call('POST', '/api/api-keys', { label: 'member', role: 'member' })
      return callerWith(body.token)
    },
    async run(nodes, more = {}) {
      const { status, body } = await call('POST', '/api/workflows/runs', {
        definition: { name: 'test', nodes },
        ...more,
      })
      if (status !== 202) throw new Error(`no run: ${JSON.stringify(body)}`)
      return body.id
    },
    until,
    rests: (id) => until(id, ({ status }) => status > 1),
  }
}

/** The node of a run. */
export const node = (run: Body, id: string): Body => run.nodes.find((one: Body) => one.id === id)

const ports = new Set<number>()
const masterKey = randomBytes(32).toString('base64')

export interface Effect {
  readonly path: string
  readonly key: string
  readonly attempt: number
  readonly body: unknown
}

export type Effects = Awaited<ReturnType<typeof startEffects>>

/** A server that counts what is asked of it. Start it before the stage that is to reach it. */
export async function startEffects(
  t: Pick<TestContext, 'after'>,
  answer: (
    effect: Effect,
    request: IncomingMessage,
  ) =>
    | { readonly status?: number; readonly body?: unknown; readonly location?: string }
    | Promise<{ status?: number; body?: unknown; location?: string }> = () => ({}),
) {
  const effects: Effect[] = []
  const server = createServer((request, reply) => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    request.on('end', async () => {
      const text = Buffer.concat(chunks).toString('utf8')
      const effect = {
        path: request.url ?? '',
        key: String(request.headers['idempotency-key']),
        attempt: Number(request.headers['workflow-attempt']),
        body: text === '' ? undefined : (JSON.parse(text) as unknown),
      }
      effects.push(effect)
      const { status = 200, body = { done: true }, location } = await answer(effect, request)
      const headers = { 'content-type': 'application/json', ...(location === undefined ? {} : { location }) }
      reply.writeHead(status, headers).end(JSON.stringify(body))
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  ports.add(port)
  return { url: `http://127.0.0.1:${port}`, effects }
}
