import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { Secrets } from '#contracts/secrets'
import { type Signer, Signers } from '#contracts/signing'
import { testRole } from '#testing'

type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
export type Call = (
  method: Method,
  url: string,
  body?: unknown,
) => Promise<{ status: number; body: Body; headers: Record<string, unknown> }>
/** What the tests read of an answer. */
export interface Body {
  readonly [field: string]: unknown
}

export const randomKey = (): string => randomBytes(32).toString('base64')

/** The master key of a stage where none is given. */
export const masterKey = randomKey()

/** The conductor as an operator runs it, with owners of two tenants. */
export async function stage(t: TestContext, variables: Record<string, string> = {}) {
  const parts: { database: Database; secrets: Secrets; signers: ReadonlyMap<string, Signer> }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, secrets: Secrets, signers: Signers },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  const bootstrap = randomBytes(24).toString('hex')
  const kernel = await testRole(t, 'conductor', [probe], {
    RUNNER_URLS: 'http://127.0.0.1:1',
    AGENT_ORC_MASTER_KEY: masterKey,
    AGENT_ORC_BOOTSTRAP_KEY: bootstrap,
    AGENT_ORC_BOOTSTRAP: 'always',
    AGENT_ORC_ADMIN_TENANT: 'default',
    ...variables,
  })
  const { database, secrets, signers } = parts[0]!
  const callerWith =
    (key: string | undefined): Call =>
    async (method, url, body) => {
      const reply = await kernel.listeners['conductor']!.inject({
        method,
        url,
        headers: {
          ...(key === undefined ? {} : { authorization: `Bearer ${key}` }),
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        ...(body === undefined ? {} : { payload: JSON.stringify(body) }),
      })
      const text = reply.body
      return { status: reply.statusCode, headers: reply.headers, body: (text === '' ? {} : JSON.parse(text)) as Body }
    }
  const owner = callerWith(bootstrap)
  /** Resolves over the signed plane, as `tenant`; the headers are those of a signature of `family` unless given. */
  const resolve = async (
    ref: unknown,
    { tenant = 'default', family = 'vfs', headers }: { tenant?: string; family?: string; headers?: object } = {},
  ) => {
    const [url, payload] = ['/internal/secrets/resolve', JSON.stringify({ ref })]
    const parts = { tenant, method: 'POST', target: url, body: Buffer.from(payload) }
    const reply = await kernel.listeners['internal']!.inject({
      method: 'POST',
      url,
      headers: { 'content-type': 'application/json', ...(headers ?? signers.get(family)!.sign(parts)) },
      payload,
    })
    return { status: reply.statusCode, headers: reply.headers, body: reply.json<Body>() }
  }
  return {
    kernel,
    database,
    secrets,
    signers,
    owner,
    callerWith,
    resolve,
    /** The owner of another tenant, which is made for it. */
    async other(id: string): Promise<Call> {
      const made = await owner('POST', '/api/tenants', { id, name: id, ownerKey: true })
      return callerWith((made.body['ownerKey'] as { token: string }).token)
    },
    async withRole(role: string): Promise<Call> {
      const made = await owner('POST', '/api/api-keys', { label: role, role })
      return callerWith(made.body['token'] as string)
    },
  }
}
