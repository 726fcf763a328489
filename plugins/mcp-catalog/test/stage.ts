import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { McpServers } from '#contracts/mcp-servers'
import { freshDatabase, testRole } from '#testing'
import { issueKey } from '../../auth/keys.service.ts'

/** What the tests read of an answer. */
export interface Body {
  readonly [field: string]: unknown
}
export interface Answer {
  readonly status: number
  readonly body: Body
  readonly headers: Readonly<Record<string, unknown>>
}
export type Call = (method: 'GET' | 'POST' | 'PUT' | 'DELETE', url: string, body?: unknown) => Promise<Answer>

const masterKey = randomBytes(32).toString('base64')

interface StageOptions {
  /** The database of another stage: its second conductor. */
  readonly dsn?: string
  readonly variables?: Readonly<Record<string, string>>
  readonly settings?: object
}

/** The conductor as an operator runs it, where servers of this machine may be entered. */
export async function stage(t: TestContext, { dsn, variables = {}, settings = {} }: StageOptions = {}) {
  const parts: { database: Database; tokens: Tokens; servers: McpServers }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, tokens: Tokens, servers: McpServers },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  const where = dsn ?? (await freshDatabase(t))
  const kernel = await testRole(
    t,
    'conductor',
    [probe],
    {
      POSTGRES_DSN: where,
      RUNNER_URLS: 'http://127.0.0.1:1',
      AGENT_ORC_MASTER_KEY: masterKey,
      AGENT_ORC_MCP_ALLOW_HOSTS: '127.0.0.1',
      ...variables,
    },
    { 'mcp-catalog': settings },
  )
  const { database, tokens, servers } = parts[0]!
  const caller = async (tenantId: string, role: 'owner' | 'admin' | 'member' = 'owner'): Promise<Call> => {
    const { token } = await issueKey(database, tokens, { tenantId, role, label: role, createdBy: 'test' })
    return async (method, url, body) => {
      const reply = await kernel.listeners['conductor']!.inject({
        method,
        url,
        headers: {
          authorization: `Bearer ${token}`,
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        ...(body === undefined ? {} : { payload: JSON.stringify(body) }),
      })
      const text = reply.body
      return { status: reply.statusCode, headers: reply.headers, body: (text === '' ? {} : JSON.parse(text)) as Body }
    }
  }
  const metrics = async (): Promise<string> => (await kernel.listeners['operations']!.inject({ url: '/metrics' })).body
  return { dsn: where, kernel, database, servers, caller, metrics, call: await caller('default') }
}

export const catalog = '/api/mcp/catalog'
/** The status and the code of an answer that is an error. */
export const failureOf = ({ status, body }: Answer): unknown[] => [status, body['error']]
export const sentenceOf = ({ body }: Answer): string => String(body['message'])
/** An answer that is a list. */
export const itemsOf = ({ body }: Answer): readonly Body[] => body as unknown as readonly Body[]
