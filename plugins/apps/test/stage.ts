import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'
import { pino } from 'pino'
import { definePlugin } from '#kernel'
import { Apps } from '#contracts/apps'
import { Database } from '#contracts/database'
import { McpServers } from '#contracts/mcp-servers'
import { freshDatabase, startAuthorizationServer, startExternalServer, testRole } from '#testing'
import { type Accounts, Connections } from '../connections/accounts.ts'
import { doRenewals } from '../connections/index.ts'

/** What the tests read of an answer. */
export interface Body {
  readonly [field: string]: unknown
}
export interface Answer {
  readonly status: number
  readonly body: Body
  readonly text: string
  readonly headers: Readonly<Record<string, unknown>>
}
export type Call = (method: 'GET' | 'POST' | 'PUT' | 'DELETE', url: string, body?: unknown) => Promise<Answer>

const masterKey = randomBytes(32).toString('base64')
export const publicUrl = 'https://agents.test'

interface StageOptions {
  /** The database of another stage: its second conductor. */
  readonly dsn?: string
  readonly variables?: Readonly<Record<string, string>>
  readonly settings?: Readonly<Record<string, object>>
}

/** The conductor as an operator runs it, where servers of this machine may be entered. */
export async function stage(t: TestContext, { dsn, variables = {}, settings = {} }: StageOptions = {}) {
  const parts: { database: Database; apps: Apps; connections: Accounts; servers: McpServers }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, apps: Apps, connections: Connections, servers: McpServers },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  const bootstrap = randomBytes(24).toString('hex')
  const where = dsn ?? (await freshDatabase(t))
  const kernel = await testRole(
    t,
    'conductor',
    [probe],
    {
      POSTGRES_DSN: where,
      RUNNER_URLS: 'http://127.0.0.1:1',
      AGENT_ORC_MASTER_KEY: masterKey,
      AGENT_ORC_PUBLIC_URL: publicUrl,
      AGENT_ORC_APPS_RETURN_ORIGINS: 'https://shop.test',
      AGENT_ORC_BOOTSTRAP_KEY: bootstrap,
      AGENT_ORC_BOOTSTRAP: 'always',
      AGENT_ORC_ADMIN_TENANT: 'default',
      AGENT_ORC_MCP_ALLOW_HOSTS: '127.0.0.1',
      AGENT_ORC_WEBHOOK_KEY: masterKey,
      ...variables,
    },
    settings,
  )
  const { database, apps, connections, servers } = parts[0]!
  const callerWith =
    (token: string | undefined): Call =>
    async (method, url, body) => {
      const reply = await kernel.listeners['conductor']!.inject({
        method,
        url,
        headers: {
          ...(token === undefined ? { accept: 'text/html' } : { authorization: `Bearer ${token}` }),
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        ...(body === undefined ? {} : { payload: JSON.stringify(body) }),
      })
      const text = reply.body
      const json = String(reply.headers['content-type']).includes('json')
      return {
        status: reply.statusCode,
        headers: reply.headers,
        text,
        body: (json && text !== '' ? JSON.parse(text) : {}) as Body,
      }
    }
  const call = callerWith(bootstrap)
  return {
    dsn: where,
    kernel,
    database,
    apps,
    servers,
    call,
    /** Anybody, such as the browser of the owner of an account. */
    browse: (path: string) => callerWith(undefined)('GET', path),
    /** What the job does each minute. */
    renew: () => doRenewals(database, connections, pino({ level: 'silent' }), AbortSignal.timeout(60_000)),
    async member(): Promise<Call> {
      const { body } = await call('POST', '/api/api-keys', { label: 'member', role: 'member' })
      return callerWith(body['token'] as string)
    },
    async other(id: string): Promise<Call> {
      const { body } = await call('POST', '/api/tenants', { id, name: id, ownerKey: true })
      return callerWith((body['ownerKey'] as { token: string }).token)
    },
    rows: async (text: string): Promise<Body[]> => (await database.batch<[Body[]]>('default', [{ text }]))[0],
  }
}
export type Stage = Awaited<ReturnType<typeof stage>>

/** An MCP server that takes tokens of an authorization server, entered as `files`. */
export async function stageWithOAuth(
  t: TestContext,
  oauth: object = { connection: 'user' },
  options: StageOptions = {},
) {
  const [s, issuer] = await Promise.all([stage(t, options), startAuthorizationServer(t)])
  const sent: string[] = []
  const server = await startExternalServer(t, { read: { input: { path: { type: 'string' } } }, write: {} })
  const { origin } = new URL(server.url)
  const resource = { resource: server.url, authorization_servers: [issuer.url], scopes_supported: ['files'] }
  server.before = (request, response) => {
    if (request.url === '/who') {
      response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(resource))
      return true
    }
    if (issuer.isValid(request.headers.authorization)) {
      sent.push(request.headers.authorization!)
      return false
    }
    response.writeHead(401, { 'www-authenticate': `Bearer resource_metadata="${origin}/who"` }).end()
    return true
  }
  const entry = { name: 'files', url: server.url, oauth: { grant: 'authorization_code', ...oauth } }
  const entered = await s.call('POST', '/api/mcp/catalog', entry)
  assert.equal(entered.status, 201, entered.text)
  const begin = async (order: object = {}): Promise<Answer> => s.call('POST', '/api/apps/files/connect', order)
  return {
    ...s,
    issuer,
    server,
    resource,
    entry,
    /** The tokens that the server was sent and took. */
    sent,
    begin,
    /** Connects the account of a person, or of the tenant; resolves to the id of the connection. */
    async connect(order: object = {}): Promise<string> {
      const { body, status, text } = await begin(order)
      assert.equal(status, 200, text)
      const page = await s.browse(issuer.agree(String(body['url'])))
      assert.ok([200, 303].includes(page.status), page.text)
      return String(body['connectionId'])
    },
    read: (endUserId?: string, call = s.call) =>
      call('POST', '/api/apps/files/call', {
        name: 'read',
        arguments: { path: 'a' },
        ...(endUserId ? { endUserId } : {}),
      }),
    age: (text: string) => s.database.batch('default', [{ text: `UPDATE app_connections SET ${text}` }]),
    state: async (id?: string) =>
      ((await s.call('GET', '/api/apps/files/connections')).body as unknown as Body[]).find(
        (one) => id === undefined || one['id'] === id,
      ),
  }
}

/** A receiver of webhooks; resolves each message by its number. */
export async function startReceiver(t: TestContext) {
  const messages: Body[] = []
  let arrived = Promise.withResolvers<void>()
  const http = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    messages.push(JSON.parse(Buffer.concat(chunks).toString()) as Body)
    response.end()
    arrived.resolve()
    arrived = Promise.withResolvers()
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    return new Promise<void>((resolve) => http.close(() => resolve()))
  })
  const { port } = http.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}/hooks`,
    allow: `127.0.0.1:${port}=*`,
    async next(n: number): Promise<Body> {
      while (messages.length < n) await arrived.promise
      return messages[n - 1]!
    },
  }
}

/** The status and the code of an answer that is an error. */
export const failureOf = ({ status, body }: Answer): unknown[] => [status, body['error']]
export const sentenceOf = ({ body }: Answer): string => String(body['message'])
export const itemsOf = ({ body }: Answer): readonly Body[] => body as unknown as readonly Body[]
