import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { McpServers } from '#contracts/mcp-servers'
import { freshDatabase, testRole } from '#testing'

/** What the tests read of an answer. */
export interface Body {
  readonly [field: string]: unknown
}
export interface Answer {
  readonly status: number
  readonly body: Body
  readonly headers: Readonly<Record<string, unknown>>
}
export type Call = (
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE',
  url: string,
  body?: unknown,
  headers?: Readonly<Record<string, string>>,
) => Promise<Answer>

const masterKey = randomBytes(32).toString('base64')

interface StageOptions {
  /** The database of another stage: its second conductor. */
  readonly dsn?: string
  readonly variables?: Readonly<Record<string, string>>
  readonly settings?: object
}

/** The conductor as an operator runs it, where servers of this machine may be entered. */
export async function stage(t: TestContext, { dsn, variables = {}, settings = {} }: StageOptions = {}) {
  const parts: { database: Database; servers: McpServers }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, servers: McpServers },
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
      AGENT_ORC_BOOTSTRAP_KEY: bootstrap,
      AGENT_ORC_BOOTSTRAP: 'always',
      AGENT_ORC_ADMIN_TENANT: 'default',
      AGENT_ORC_MCP_ALLOW_HOSTS: '127.0.0.1',
      ...variables,
    },
    { 'mcp-catalog': settings },
  )
  const { database, servers } = parts[0]!
  const callerWith =
    (token: string): Call =>
    async (method, url, body, headers) => {
      const reply = await kernel.listeners['conductor']!.inject({
        method,
        url,
        headers: {
          authorization: `Bearer ${token}`,
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...headers,
        },
        ...(body === undefined ? {} : { payload: JSON.stringify(body) }),
      })
      const text = reply.body
      return { status: reply.statusCode, headers: reply.headers, body: (text === '' ? {} : JSON.parse(text)) as Body }
    }
  const call = callerWith(bootstrap)
  const metrics = async (): Promise<string> => (await kernel.listeners['operations']!.inject({ url: '/metrics' })).body
  return {
    dsn: where,
    kernel,
    database,
    servers,
    metrics,
    call,
    callerWith,
    async member(): Promise<Call> {
      const { body } = await call('POST', '/api/api-keys', { label: 'member', role: 'member' })
      return callerWith(body['token'] as string)
    },
    /** The owner of another tenant, which is made for it. */
    async other(id: string): Promise<Call> {
      const { body } = await call('POST', '/api/tenants', { id, name: id, ownerKey: true })
      return callerWith((body['ownerKey'] as { token: string }).token)
    },
  }
}

export const catalog = '/api/mcp/catalog'
/** The status and the code of an answer that is an error. */
export const failureOf = ({ status, body }: Answer): unknown[] => [status, body['error']]
export const sentenceOf = ({ body }: Answer): string => String(body['message'])
/** An answer that is a list. */
export const itemsOf = ({ body }: Answer): readonly Body[] => body as unknown as readonly Body[]
