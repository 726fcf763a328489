import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'

export interface Asked {
  readonly method: string
  readonly path: string
  readonly key: string | undefined
  readonly body: Readonly<Record<string, unknown>> | undefined
}

const tool = (slug: string, parameters: object) => ({
  slug,
  name: slug.toLowerCase(),
  description: `Does ${slug}.`,
  toolkit: { slug: 'gmail', name: 'Gmail', logo: '' },
  input_parameters: parameters,
  no_auth: false,
  available_versions: ['20250905_00'],
  version: '20250905_00',
  output_parameters: {},
  scopes: [],
  tags: [],
})

/** Answers as Composio's documentation of its API (v3, and v3.1 for revocation) says. */
export async function startComposio(t: TestContext) {
  const accounts = new Map<string, { status: string; userId: string }>()
  const asked: Asked[] = []
  const composio = {
    url: '',
    accounts,
    asked,
    keys: ['ak_test'],
    /** Answers everything with this status. */
    down: 0,
    links: 0,
    /** What of an account a call needs. */
    agree: (id: string) => accounts.set(id, { ...accounts.get(id)!, status: 'ACTIVE' }),
  }
  const route = (method: string, path: string, query: URLSearchParams, body: Asked['body']): [number, object] => {
    const [, , version, kind, id, action] = path.split('/')
    if (kind === 'auth_configs') {
      const config = (of: string, status: string) => ({ id: of, status, toolkit: { slug: query.get('toolkit_slug') } })
      return [200, { items: [config('ac_off', 'DISABLED'), config('ac_on', 'ENABLED')], next_cursor: null }]
    }
    if (kind === 'tools' && method === 'GET') {
      const second = query.get('cursor') === 'two'
      const items = second
        ? [tool('GMAIL_SEND_EMAIL', { to: { type: 'string', required: true }, subject: { type: 'string' } })]
        : [tool('GMAIL_FETCH_EMAILS', { type: 'object', properties: { query: { type: 'string' } } })]
      return [200, { items, next_cursor: second ? null : 'two', total_items: 2 }]
    }
    if (kind === 'tools') {
      const account = accounts.get(String(body!['connected_account_id']))
      if (account?.status !== 'ACTIVE' || account.userId !== body!['user_id']) {
        const error = { message: 'Connected account is not usable', code: 1_803, status: 400, request_id: 'r' }
        return [400, { error }]
      }
      const given = body!['arguments'] as Record<string, unknown>
      const failed = given['to'] === 'nobody'
      return [
        200,
        {
          data: failed ? {} : { id: 'm1', ...given },
          error: failed ? 'No such address' : null,
          successful: !failed,
          log_id: 'l',
        },
      ]
    }
    if (kind !== 'connected_accounts') return [404, { error: { message: 'not found' } }]
    if (method === 'POST' && id === 'link') {
      const made = `ca_${++composio.links}`
      accounts.set(made, { status: 'INITIATED', userId: String(body!['user_id']) })
      const redirect = `https://connect.composio.test/link/lk_${composio.links}`
      return [
        201,
        { link_token: 'lk', redirect_url: redirect, expires_at: '2030-01-01T00:00:00Z', connected_account_id: made },
      ]
    }
    const account = accounts.get(id!)
    if (!account) return [404, { error: { message: 'not found' } }]
    if (action === 'revoke' && version === 'v3.1') {
      account.status = 'REVOKED'
      return [200, { revoked_tokens: ['access_token'], connected_account: { id, status: 'REVOKED' } }]
    }
    if (method === 'DELETE') {
      accounts.delete(id!)
      return [200, { success: true }]
    }
    return [
      200,
      { id, status: account.status, status_reason: null, toolkit: { slug: 'gmail' }, user_id: account.userId },
    ]
  }
  const http = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const text = Buffer.concat(chunks).toString()
    const { pathname, searchParams } = new URL(request.url!, 'http://x')
    const body = text === '' ? undefined : (JSON.parse(text) as Asked['body'])
    const key = request.headers['x-api-key'] as string | undefined
    asked.push({ method: request.method!, path: pathname, key, body })
    const [status, answer] =
      composio.down > 0
        ? [composio.down, { error: { message: 'away' } }]
        : composio.keys.includes(key ?? '')
          ? route(request.method!, pathname, searchParams, body)
          : [401, { error: { message: 'Invalid API key' } }]
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(answer))
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    return new Promise<void>((resolve) => http.close(() => resolve()))
  })
  composio.url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`
  return composio
}
