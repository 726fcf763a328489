import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'
import { pino } from 'pino'
import { Apps } from '#contracts/apps'
import { Database } from '#contracts/database'
import { McpServers } from '#contracts/mcp-servers'
import { TenantData } from '#contracts/retention'
import {
  asOwnHosts,
  operatedConductor,
  startAuthorizationServer,
  startExternalServer,
  type TestAnswer,
  type TestBody,
} from '#testing'
import { Connections } from '../connections/accounts.ts'
import { doRenewals } from '../connections/index.ts'

const masterKey = randomBytes(32).toString('base64')
export const publicUrl = 'https://agents.test'

interface StageOptions {
  /** The database of another stage, so that this stage is its second conductor. */
  readonly dsn?: string
  /** URLs of servers of this machine that tenants may enter. */
  readonly own?: readonly string[]
  readonly variables?: Readonly<Record<string, string>>
  readonly settings?: Readonly<Record<string, object>>
}

/** A conductor as an operator runs it. */
export async function stage(t: TestContext, { dsn, own = [], variables = {}, settings = {} }: StageOptions = {}) {
  const needs = { database: Database, apps: Apps, connections: Connections, servers: McpServers, data: TenantData }
  const { parts, operator, callerWith, withRole, ...rest } = await operatedConductor(t, {
    needs,
    dsn,
    variables: {
      AGENT_ORC_MASTER_KEY: masterKey,
      AGENT_ORC_PUBLIC_URL: publicUrl,
      AGENT_ORC_APPS_RETURN_ORIGINS: 'https://shop.test',
      AGENT_ORC_MCP_ALLOW_HOSTS: asOwnHosts(own),
      AGENT_ORC_WEBHOOK_KEY: masterKey,
      ...variables,
    },
    settings,
  })
  const { database, apps, connections, servers, data } = parts
  return {
    ...rest,
    database,
    apps,
    servers,
    data,
    call: operator,
    callerWith,
    /** Requests without a key, as the browser of an account's owner makes them. */
    browse: (path: string) => callerWith(undefined)('GET', path, undefined, { accept: 'text/html' }),
    /** The job that runs each minute. */
    renew: () => doRenewals(database, connections, pino({ level: 'silent' }), AbortSignal.timeout(60_000)),
    member: () => withRole('member'),
    rows: async (text: string): Promise<TestBody[]> => (await database.batch<[TestBody[]]>('default', [{ text }]))[0],
  }
}
export type Stage = Awaited<ReturnType<typeof stage>>

/** A stage with an MCP server, entered as `files`, that accepts tokens of an authorization server. */
export async function stageWithOAuth(
  t: TestContext,
  oauth: object = { connection: 'user' },
  options: StageOptions = {},
) {
  const issuer = await startAuthorizationServer(t)
  const server = await startExternalServer(t, { read: { input: { path: { type: 'string' } } }, write: {} })
  const own = [issuer.url, server.url]
  const s = await stage(t, { ...options, own })
  const sent: string[] = []
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
  const begin = async (order: object = {}): Promise<TestAnswer> => s.call('POST', '/api/apps/files/connect', order)
  return {
    ...s,
    own,
    issuer,
    server,
    resource,
    entry,
    /** The tokens that the MCP server has received and accepted. */
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
      ((await s.call('GET', '/api/apps/files/connections')).body as unknown as TestBody[]).find(
        (one) => id === undefined || one['id'] === id,
      ),
  }
}

/** A receiver of webhooks; resolves each message by its number. */
export async function startReceiver(t: TestContext) {
  const messages: TestBody[] = []
  let arrived = Promise.withResolvers<void>()
  const http = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    messages.push(JSON.parse(Buffer.concat(chunks).toString()) as TestBody)
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
    async next(n: number): Promise<TestBody> {
      while (messages.length < n) await arrived.promise
      return messages[n - 1]!
    },
  }
}

/** The status and the code of an answer that is an error. */
export const failureOf = ({ status, body }: TestAnswer): unknown[] => [status, body['error']]
export const sentenceOf = ({ body }: TestAnswer): string => String(body['message'])
export const itemsOf = ({ body }: TestAnswer): readonly TestBody[] => body as unknown as readonly TestBody[]
