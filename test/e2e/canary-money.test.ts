import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { startToolServer } from '#testing'
import { delivery } from '../../providers/billing-stripe/test/stripe-api.ts'
import { chat } from './client.ts'
import { type Cluster, eventually, startCluster } from './cluster.ts'
import { dumpOf, foundIn } from './needles.ts'

// Invariant K2 for what is paid and what is remembered: keys of providers and secrets of tenants are with nobody else, whatever fails.

const random = (): string => randomBytes(24).toString('base64')
const canaries = {
  stripeKey: `sk_test_${randomBytes(24).toString('hex')}`,
  stripeSigning: `whsec_${random()}`,
  memoryModel: `canary/model+${random()}`,
  embeddings: `canary/embeddings+${random()}`,
  signing: `whsec_${randomBytes(32).toString('base64')}`,
  token: `canary "token"+${random()}`,
} as const

interface Echo {
  readonly url: string
  readonly seen: string[]
  /** From now on customers and pages of payments are made. */
  work(): void
  /** The checkout that the page was made for. */
  checkout: string
}

/** Stands for every server that the conductor asks: what it was sent is in its error, headers and body, and where a library looks for reasons. */
async function startEcho(t: TestContext): Promise<Echo> {
  let works = false
  const echo = { url: '', seen: [] as string[], checkout: '', work: () => void (works = true) }
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = Buffer.concat(chunks).toString()
    const told = JSON.stringify({ headers: request.headers, body })
    echo.seen.push(`${request.url} ${told}`)
    response.setHeader('content-type', 'application/json')
    response.setHeader('request-id', String(request.headers.authorization ?? 'none').slice(0, 200))
    if (works && request.url === '/v1/customers') return void response.end('{"id":"cus_1"}')
    if (works && request.url === '/v1/checkout/sessions') {
      echo.checkout = new URLSearchParams(body).get('metadata[checkout_id]')!
      return void response.end('{"id":"cs_1","url":"https://checkout.stripe.test/cs_1"}')
    }
    const error = { type: 'invalid_request_error', message: told, param: told, code: told, doc_url: told }
    response.writeHead(400).end(JSON.stringify({ error }))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return Object.assign(echo, { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` })
}

async function start(t: TestContext, echo: Echo, tools: string): Promise<Cluster> {
  const folder = await mkdtemp(join(tmpdir(), 'ao-canary-'))
  t.after(() => rm(folder, { recursive: true }))
  const file = join(folder, 'dev.yaml')
  const price = 'openai/stand-in: { inputCentsPerMillion: 0, outputCentsPerMillion: 1000000 }'
  const server = `token: { url: '${tools}', headers: { authorization: 'Bearer secret://token' }, tenants: '*' }`
  const text = await readFile(new URL('../../config/dev.yaml', import.meta.url), 'utf8')
  await writeFile(
    file,
    text.replace(/^ {2}prices:\n {4}models:\n/m, `$&      ${price}\n`).replace('servers: {}', `servers: { ${server} }`),
  )
  return startCluster(t, 'single', {
    files: { dev: file },
    env: {
      AGENT_ORC_MASTER_KEY: randomBytes(32).toString('base64'),
      AGENT_ORC_ADMIN_TENANT: 'default',
      AGENT_ORC_BILLING: 'stripe',
      STRIPE_SECRET_KEY: canaries.stripeKey,
      STRIPE_WEBHOOK_SECRET: canaries.stripeSigning,
      STRIPE_API_URL: echo.url,
      AGENT_ORC_MEMORY_MODEL_URL: echo.url,
      AGENT_ORC_MEMORY_MODEL_KEY: canaries.memoryModel,
      AGENT_ORC_MEMORY_MODEL: 'm',
      AGENT_ORC_MEMORY_EMBEDDINGS_URL: echo.url,
      AGENT_ORC_MEMORY_EMBEDDINGS_KEY: canaries.embeddings,
      AGENT_ORC_MEMORY_EMBEDDINGS_MODEL: 'e',
      AGENT_ORC_WEBHOOK_KEY: randomBytes(32).toString('base64'),
      AGENT_ORC_WEBHOOK_ALLOW_HOSTS: `${new URL(echo.url).host}=*`,
      LOG_LEVEL: 'trace',
      LOG_REQUESTS: 'true',
    },
  })
}

test('K2: no key of a payment provider or of a memory model, and no secret of a tenant, is in what billing and memories tell, log or keep', async (t) => {
  const echo = await startEcho(t)
  const tools = await startToolServer(t, { look: async () => ({ text: 'Ann prefers window seats on planes.' }) })
  const cluster = await start(t, echo, tools.url)
  const told: string[] = []
  const api = async (method: string, path: string, body?: unknown) => {
    const reply = await cluster.api<Record<string, unknown>>(method, path, body)
    told.push(JSON.stringify(reply.body))
    return reply
  }
  const deliver = async ({ body, headers }: ReturnType<typeof delivery>): Promise<number> => {
    const reply = await fetch(`${cluster.conductorUrl}/api/billing/events/stripe`, { method: 'POST', headers, body })
    told.push(`${JSON.stringify([...reply.headers])}${await reply.text()}`)
    return reply.status
  }
  const signed = (type: string, object: object, secret: string = canaries.stripeSigning) =>
    deliver(delivery(type, object, { secret }))

  for (const name of ['signing', 'token'] as const)
    assert.equal((await api('POST', '/api/secrets', { name, value: canaries[name] })).status, 201)
  await api('PUT', '/api/webhooks/secret', { secret: 'secret://signing' })

  // The provider fails and repeats what it was sent; events are forged, broken, too large, or about what it cannot say.
  assert.equal((await api('POST', '/api/billing/checkout', { cents: 500 })).status, 502)
  assert.equal(await signed('charge.refunded', { id: 'ch_1' }, 'whsec_other'), 400)
  assert.equal(await signed('charge.dispute.created', { id: 'dp_1', amount: 5, status: 'lost', charge: 'ch_1' }), 502)
  const { headers } = delivery('charge.refunded', {})
  for (const signature of ['', canaries.stripeSigning, `t=1,v1=${canaries.stripeSigning}`])
    assert.equal(await deliver({ body: '{"broken', headers: { ...headers, 'stripe-signature': signature } }), 400)
  echo.work()
  assert.equal((await api('POST', '/api/billing/checkout', { cents: 500 })).status, 200)
  const metadata = { tenant_id: 'default', checkout_id: echo.checkout }
  const paid = { id: 'cs_1', payment_status: 'paid', amount_subtotal: 500, metadata }
  assert.equal(await signed('checkout.session.completed', paid), 200)
  await api('POST', '/api/billing/portal')

  // A run with a secret's value and a price, whose budget is told of by a signed message; its agent remembers what it saw.
  const agent = await cluster.agent('keeper')
  const budgets = [{ scope: 'profile', subject: 'keeper', per: 'day', capCents: 2, webhookUrl: `${echo.url}/alert` }]
  assert.equal((await api('PUT', '/api/billing/budgets', { budgets })).status, 200)
  const profile = {
    model: 'openai/stand-in',
    tools: ['memory_save', 'memory_search'],
    mcpServers: ['token'],
    memory: { inject: 3, extract: true },
  }
  assert.equal((await api('PUT', '/api/profiles/keeper', profile)).status, 200)
  const calls = (name: string, input: object) => ({ toolCalls: [{ id: name, name, arguments: input }] })
  cluster.model.next(
    calls('mcp__token__look', {}),
    calls('memory_save', { content: 'Ann prefers window seats; the server takes secret://token.' }),
    { text: 'seen and kept' },
  )
  // Whoever names nobody saves nothing.
  const ann = { metadata: { end_user_id: 'ann' } }
  const reply = await chat(agent, { message: 'Which seat does Ann want on the plane?', ...ann })
  assert.equal(reply.status, 200, JSON.stringify(reply.body))
  told.push(JSON.stringify(reply.body))
  assert.ok(tools.tokens.includes(`Bearer ${canaries.token}`), 'the server was sent the value')
  told.push(JSON.stringify((await chat(agent, { message: 'And on the way back?', ...ann })).body))

  // The model and the embeddings of memories fail and repeat their keys: memories are made by rules, and found by words.
  const rawInput = 'Ann moved to Lisbon in 2024. She works as a nurse.'
  assert.equal((await api('POST', '/api/profiles/keeper/memories', { rawInput })).status, 201)
  await api('GET', `/api/profiles/keeper/memories/search?q=${encodeURIComponent('Where does Ann live?')}`)
  await eventually('all of them were asked', async () =>
    ['/v1/charges/', '/chat/completions', '/alert'].every((path) => echo.seen.some((one) => one.startsWith(path))),
  )
  // Embeddings, which need pgvector, are asked by the same client as the model.
  for (const [path, name] of [
    ['/v1/', 'stripeKey'],
    ['/chat', 'memoryModel'],
  ] as const)
    assert.ok(
      echo.seen.some((one) => one.startsWith(path) && one.includes(`Bearer ${canaries[name]}`)),
      name,
    )
  await eventually('the delivery has failed', async () =>
    JSON.stringify((await api('GET', '/api/webhooks/deliveries')).body).includes('answered 400'),
  )

  for (const path of [
    'billing/wallet',
    'billing/ledger',
    'billing/ledger?format=csv',
    'billing/budgets',
    `billing/checkouts/default/${echo.checkout}`,
    'profiles/keeper/memories',
    'memory',
    'memory?limit=10',
    'memory/stats',
    'usage',
    'audit?limit=200',
    'runs',
    'sessions',
    'secrets/token/reads',
  ])
    assert.equal((await api('GET', `/api/${path}`)).status, 200, path)
  told.push(await (await fetch(`${cluster.operationsUrl('conductor')}/metrics`)).text())

  assert.deepEqual(foundIn(told.join('\n'), canaries), [], 'in what was answered')
  const output = cluster.output()
  for (const said of ['a request to Stripe failed', 'the model did not answer', '/api/billing/events'])
    assert.ok(output.includes(said), said)
  assert.deepEqual(foundIn(output, canaries), [], 'in the logs')
  const dump = await dumpOf(cluster.dsn, 'default')
  assert.match(dump.get('public.memories')!, /secret:\/\/token/, 'a reference in a memory is a reference')
  assert.match(dump.get('public.billing_checkouts')!, /cs_1|cus_1|paid/)
  for (const [table, rows] of dump) assert.deepEqual(foundIn(rows, canaries), [], `in ${table}`)
})
