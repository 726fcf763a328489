import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { Database } from '#contracts/database'
import { McpServers } from '#contracts/mcp-servers'
import { asOwnHosts, operatedConductor, type TestAnswer, type TestBody } from '#testing'

const masterKey = randomBytes(32).toString('base64')

interface StageOptions {
  /** The database of another stage, so that this stage is its second conductor. */
  readonly dsn?: string
  /** URLs of servers of this machine that tenants may enter. */
  readonly own?: readonly string[]
  readonly variables?: Readonly<Record<string, string>>
  readonly settings?: object
}

/** A conductor as an operator runs it. */
export async function stage(t: TestContext, { dsn, own = [], variables = {}, settings = {} }: StageOptions = {}) {
  const { parts, operator, withRole, ...rest } = await operatedConductor(t, {
    needs: { database: Database, servers: McpServers },
    dsn,
    variables: { AGENT_ORC_MASTER_KEY: masterKey, AGENT_ORC_MCP_ALLOW_HOSTS: asOwnHosts(own), ...variables },
    settings: { 'mcp-catalog': settings },
  })
  return {
    ...rest,
    ...parts,
    metrics: async (): Promise<string> => (await rest.kernel.listeners['operations']!.inject({ url: '/metrics' })).body,
    call: operator,
    member: () => withRole('member'),
  }
}

export const catalog = '/api/mcp/catalog'
/** The status and the code of an answer that is an error. */
export const failureOf = ({ status, body }: TestAnswer): unknown[] => [status, body['error']]
export const sentenceOf = ({ body }: TestAnswer): string => String(body['message'])
/** An answer that is a list. */
export const itemsOf = ({ body }: TestAnswer): readonly TestBody[] => body as unknown as readonly TestBody[]
