import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import type { LightMyRequestResponse } from 'fastify'
import type { TenantRole } from '#contracts/auth'
import { type Consumed, definePlugin, type Refs } from '../plugin.ts'
import { freshDatabase } from './database.ts'
import { testRole } from './kernel.ts'

/** The fields of an answer that tests read. */
export interface TestBody {
  readonly [field: string]: unknown
}
export interface TestAnswer {
  readonly status: number
  readonly text: string
  /** Empty if the body is not JSON. */
  readonly body: TestBody
  readonly headers: Readonly<Record<string, unknown>>
}
/** Makes a request with a key. `body` is sent as JSON; a text is sent unchanged. */
export type TestCall<A = TestAnswer> = (
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE',
  url: string,
  body?: unknown,
  headers?: Readonly<Record<string, string>>,
) => Promise<A>

interface OperatedOptions<R extends Refs> {
  /** The capabilities of the conductor's plugins that the test uses. */
  readonly needs: R
  /** The database of another conductor, which makes this its second one. */
  readonly dsn?: string | undefined
  readonly variables?: Readonly<Record<string, string>>
  /** Settings by plugin, which come before those of the role file. */
  readonly settings?: Readonly<Record<string, object>>
}

/** The conductor as an operator runs it, on a database of its own. Its operator is an admin of `default`, who makes tenants and keys. */
export async function operatedConductor<const R extends Refs>(
  t: TestContext,
  { needs, dsn, variables = {}, settings = {} }: OperatedOptions<R>,
) {
  const found: Consumed<R>[] = []
  const probe = definePlugin({ name: 'probe', requires: needs, setup: async ({ deps }) => (found.push(deps), {}) })
  const bootstrap = randomBytes(24).toString('hex')
  const where = dsn ?? (await freshDatabase(t))
  const given = {
    POSTGRES_DSN: where,
    // Nothing answers at this runner's address: these tests run no profile.
    RUNNER_URLS: 'http://127.0.0.1:1',
    AGENT_ORC_BOOTSTRAP_KEY: bootstrap,
    AGENT_ORC_BOOTSTRAP: 'always',
    AGENT_ORC_ADMIN_TENANT: 'default',
    ...variables,
  }
  const kernel = await testRole(t, 'conductor', [probe], given, { settings })
  const askingWith =
    (key: string | undefined): TestCall<LightMyRequestResponse> =>
    (method, url, body, headers) =>
      kernel.listeners['conductor']!.inject({
        method,
        url,
        headers: {
          ...(key === undefined ? {} : { authorization: `Bearer ${key}` }),
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...headers,
        },
        ...(body === undefined ? {} : { payload: typeof body === 'string' ? body : JSON.stringify(body) }),
      })
  const callerWith = (key: string | undefined): TestCall => {
    const ask = askingWith(key)
    return async (...request) => {
      const { statusCode: status, headers, body: text } = await ask(...request)
      const isJson = text !== '' && String(headers['content-type']).includes('json')
      return { status, headers, text, body: isJson ? (JSON.parse(text) as TestBody) : {} }
    }
  }
  const operator = callerWith(bootstrap)
  /** The owner's key of another tenant, which is created for it. */
  const keyOf = async (id: string): Promise<string> => {
    const { body } = await operator('POST', '/api/tenants', { id, name: id, ownerKey: true })
    return (body['ownerKey'] as { readonly token: string }).token
  }
  return {
    kernel,
    dsn: where,
    /** The capabilities that the test needs. */
    parts: found[0]!,
    bootstrap,
    operator,
    /** Calls whose answers have Fastify's form. */
    askingWith,
    /** With undefined the call has no key, like an anonymous one. */
    callerWith,
    keyOf,
    other: async (id: string): Promise<TestCall> => callerWith(await keyOf(id)),
    async withRole(role: TenantRole): Promise<TestCall> {
      const { body } = await operator('POST', '/api/api-keys', { label: role, role })
      return callerWith(body['token'] as string)
    },
  }
}
