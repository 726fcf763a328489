import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Ajv } from 'ajv'
import formats from 'ajv-formats'
import fc from 'fast-check'
import type { FastifyInstance } from 'fastify'
import type { Signer } from '#contracts/signing'
import { signedForm, streamDigest, vfsDigestHeader, vfsSessionHeader } from '#contracts/vfs'
import { LoopWatch, type Step } from '../plugins/health/event-loop.ts'
import { startConductor } from './conductor.ts'
import { type Operation, operationsOf } from './openapi-operations.ts'
import { nameOf } from './route-table.ts'
import { hostileText, valuesOf } from './schema-values.ts'
import { longestStep, slowness } from './steps.ts'

/** Requests to each route. `npm run fuzz` makes a thousand; a seed of a failure repeats it: FUZZ_SEED. */
const runs = Number(process.env['FUZZ_RUNS'] ?? 25)
const seed = Number(process.env['FUZZ_SEED'] ?? Date.now() % 2 ** 31)

/** No request loads a library: roles for production have it loaded before they are ready. */
const asInProduction = { preload: true }

interface Sent {
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly payload: Buffer | undefined
}

/** A value as text in a URL, well-formed or not. */
const inUrl = (value: unknown): string => {
  const text = typeof value === 'string' ? value : JSON.stringify(value)
  return encodeURIComponent(text.replaceAll(/[\ud800-\udfff]/g, '\ufffd'))
}
// No dots alone: a client folds them away, and asks another route.
const rawText = fc.constantFrom('%zz', '%', '%00', '%252e', '%ff', '%c0%ae', ';', '@', '*', '%20')

const usualHeaders = {
  'last-event-id': fc.constantFrom('1', '0', '-1', 'x', '1.1', '9'.repeat(30), ''),
  'idempotency-key': fc.constantFrom('k1', 'k2', 'x'.repeat(255), 'x'.repeat(256), ''),
  accept: fc.constantFrom('*/*', 'application/problem+json', 'application/x-ndjson', 'text/html', 'junk'),
  'if-match': fc.constantFrom('"1"', '*', 'junk'),
}
/** With these most listeners refuse a request before they look at it. */
const foreignHeaders = {
  origin: fc.constantFrom('https://example.com', 'null', 'junk'),
  'x-tenant-id': fc.constantFrom('acme', 'globex', ''),
}
const headers = fc.oneof(
  { weight: 7, arbitrary: fc.record(usualHeaders, { requiredKeys: [] }) },
  { weight: 1, arbitrary: fc.record({ ...usualHeaders, ...foreignHeaders }, { requiredKeys: [] }) },
)
const contentTypes = fc.oneof(
  { weight: 12, arbitrary: fc.constant('application/json') },
  {
    weight: 1,
    arbitrary: fc.constantFrom(
      'text/plain',
      'application/json; charset=utf-16',
      'application/octet-stream',
      'junk',
      'multipart/form-data',
    ),
  },
)
const bodies = (operation: Operation, known: readonly string[]): fc.Arbitrary<Buffer | undefined> => {
  const json = operation.body ? valuesOf(operation.body, known, true) : fc.jsonValue({ maxDepth: 2 })
  const text = json.map((value) => Buffer.from(JSON.stringify(value) ?? ''))
  return fc.oneof(
    { weight: 16, arbitrary: text },
    { weight: 1, arbitrary: fc.constant(undefined) },
    { weight: 1, arbitrary: text.map((bytes) => bytes.subarray(0, bytes.length >> 1)) },
    { weight: 1, arbitrary: fc.uint8Array({ maxLength: 64 }).map((bytes) => Buffer.from(bytes)) },
    {
      weight: 1,
      arbitrary: fc
        .constantFrom('['.repeat(100), `{"__proto__":{"x":1}}`, 'null', '""', '\ufeff{}')
        .map((s) => Buffer.from(s)),
    },
  )
}

/** Requests to one operation: mostly near what it documents, never quite. */
function requestsTo(operation: Operation, known: readonly string[]): fc.Arbitrary<Sent> {
  const part = (schema: object): fc.Arbitrary<string> =>
    fc.oneof(
      { weight: 3, arbitrary: valuesOf(schema, known, false).map(inUrl) },
      { weight: 2, arbitrary: fc.constantFrom(...known).map(inUrl) },
      { weight: 1, arbitrary: fc.constantFrom(...hostileText).map(inUrl) },
      { weight: 1, arbitrary: rawText },
    )
  const inPath = operation.parameters.filter((one) => one.in === 'path')
  const inQuery = operation.parameters.filter((one) => one.in === 'query')
  const path = fc
    .tuple(...inPath.map((one) => part(one.schema ?? {})))
    .map((values) =>
      inPath.reduce((url, { name }, i) => url.replace(`{${name}}`, () => values[i] || 'x'), operation.path),
    )
  const query = fc
    .record(Object.fromEntries(inQuery.map((one) => [one.name, part(one.schema ?? {})])), { requiredKeys: [] })
    .map((values) => Object.entries(values).map(([name, value]) => `${name}=${value}`))
  const takesBody = operation.method !== 'GET'
  return fc
    .tuple(
      path,
      query,
      fc.constantFrom('', '&limit=1', '&limit=1&limit=2', '&nonsense=1'),
      headers,
      contentTypes,
      bodies(operation, known),
    )
    .map(([url, pairs, more, some, contentType, payload]) => ({
      // A question mark without a query is folded away, so that what was signed would be something else.
      url: pairs.length === 0 && more === '' ? url : `${url}?${pairs.join('&')}${more}`,
      headers: { ...some, ...(takesBody && payload ? { 'content-type': contentType } : {}) },
      payload: takesBody ? payload : undefined,
    }))
}

const ajv = formats.default(new Ajv({ strict: false, allowUnionTypes: true }))
const checks = new WeakMap<object, (value: unknown) => boolean>()

/** Checks what holds for any answer. */
function judge(operation: Operation, status: number, type: string, body: string): void {
  const documented = operation.responses[status] ?? operation.responses[`${String(status)[0]!}XX`]
  // A HEAD of the router, a preflight: nothing else answers outside its document.
  assert.ok(
    documented ?? (status < 500 && operation.access === undefined),
    `status ${status} is not documented: ${body.slice(0, 300)}`,
  )
  assert.notEqual(status, 500, body)
  // The one page that is for browsers says it in words of its own.
  if (type.startsWith('text/html')) return assert.equal(operation.path, '/api/apps/callback')
  if (status >= 400) {
    const problem = JSON.parse(body) as Record<string, unknown>
    assert.match(type, /^application\/(problem\+)?json/)
    // An MCP endpoint says what is wrong with a message in the terms of its protocol.
    if (operation.path.startsWith('/mcp/') && problem['jsonrpc'] === '2.0') {
      assert.equal(typeof (problem['error'] as Record<string, unknown>)['code'], 'number', body)
      return
    }
    const code = problem['error']
    assert.ok(typeof code === 'string' && code !== '' && code.length < 300, `an error has a code: ${body}`)
    assert.equal(typeof problem['request_id'], 'string', `an error names its request: ${body}`)
    return
  }
  const kinds = Object.keys(documented?.content ?? {})
  const kind = kinds.find((one) => type.startsWith(one))
  assert.ok(kinds.length === 0 || body === '' || kind, `answered ${type}, documented ${kinds.join(', ')}`)
  const schema = kind === 'application/json' ? documented?.content?.[kind]?.schema : undefined
  if (!schema || body === '') return
  const check = checks.get(schema) ?? ajv.compile(schema)
  checks.set(schema, check)
  assert.ok(
    check(JSON.parse(body)),
    `the answer is not what is documented: ${ajv.errorsText((check as { errors?: [] }).errors)} ${body.slice(0, 500)}`,
  )
}

/** Asks, and judges the answer. What the process does meanwhile is watched as `name`, and nothing of what the test does itself. */
async function ask(app: FastifyInstance, operation: Operation, sent: Sent, steps: RequestSteps): Promise<void> {
  steps.begin(sent, operation)
  const reply = await app.inject({
    method: operation.method,
    url: sent.url,
    headers: sent.headers,
    payloadAsStream: true,
    ...(sent.payload ? { payload: sent.payload } : {}),
  })
  const type = String(reply.headers['content-type'] ?? '')
  const endless = /event-stream|ndjson/.test(type) && reply.statusCode < 400
  const chunks: Buffer[] = []
  if (endless) reply.stream().destroy()
  else for await (const chunk of reply.stream()) chunks.push(chunk as Buffer)
  steps.end()
  // An injected request has no connection that closes: what bounds the arrival of its body would wait for that.
  reply.raw.res.req.emit('close')
  judge(operation, reply.statusCode, type, Buffer.concat(chunks).toString())
}

/** What the process did in one step while a request was under way: nobody else was served meanwhile. */
class RequestSteps {
  readonly #watch = new LoopWatch({ stepped: (step) => this.#keep(step) })
  readonly #slowness: number[] = []
  #longest: Step = { cpuMs: 0, during: undefined }
  asked = 0

  constructor(t: TestContext) {
    this.#watch.start()
    t.after(() => this.#watch.stop())
  }
  begin({ url, payload }: Sent, operation: Operation): void {
    if (this.asked++ % 200 === 0) this.#slowness.push(slowness())
    const name = `${nameOf(operation)} as ${url} ${payload?.toString()}`
    this.#watch.look(name)
  }
  end(): void {
    this.#watch.look()
  }
  async assertNoStall(t: TestContext): Promise<void> {
    // Steps are told when the loop has turned a few times.
    await sleep(50)
    const { cpuMs, during } = this.#longest
    const most = longestStep(this.#slowness)
    const took = `${cpuMs.toFixed(0)} ms of the processor`
    t.diagnostic(`${this.asked} requests, seed ${seed}; the longest step took ${took}, of ${most.toFixed(0)}`)
    assert.ok(cpuMs < most, `a step took ${took}, of ${most.toFixed(0)}: ${during}`)
  }

  #keep(step: Step): void {
    // What the test does itself is done during nothing.
    if (step.during !== undefined && step.cpuMs > this.#longest.cpuMs) this.#longest = step
  }
}

/** Resolves to how many requests were made. `sign` makes one, also that for the document, what the listener takes. */
async function fuzz(
  app: FastifyInstance,
  steps: RequestSteps,
  sign: (sent: Sent, operation: Pick<Operation, 'method' | 'path'>) => Sent,
): Promise<number> {
  const before = steps.asked
  const document = sign(
    { url: '/openapi.json', headers: {}, payload: undefined },
    { method: 'GET', path: '/openapi.json' },
  )
  for (const operation of await operationsOf(app, document.headers)) {
    await fc.assert(
      fc.asyncProperty(requestsTo(operation, known), async (sent) => {
        await ask(app, operation, sign(sent, operation), steps).catch((error: Error) => {
          error.message = `${nameOf(operation)} as ${sent.url} ${JSON.stringify(sent.headers)} ${sent.payload?.toString()}: ${error.message}`
          throw error
        })
      }),
      { numRuns: runs, seed, endOnFailure: true },
    )
  }
  return steps.asked - before
}

const ofSession = 'sess-00000000-00000001'
const known = [
  'writer',
  'writer-two',
  'run-1',
  'run-2',
  ofSession,
  '1',
  '2',
  'fuzz-slug',
  'default',
  'e2b',
  'secret://writer',
  'objects',
]

/** As conductors sign what is for the VirtualFS server, mostly about a mount and a session that are there, and some in the view of that one. */
function signedForFiles(signer: Signer, method: string, { url: given, headers, payload }: Sent): Sent {
  const ours = given.replace(/^\/vfs\/(files|list)\/[^/?]+/, '/vfs/$1/objects')
  const url = given.length % 4 ? ours.replace(/^\/vfs\/sessions\/[^/?]+/, `/vfs/sessions/${ofSession}`) : given
  const session = url.length % 2 ? ofSession : ''
  const isFile = method === 'PUT' && url.startsWith('/vfs/files/')
  const digest = !payload?.length ? '' : isFile ? streamDigest : createHash('sha256').update(payload).digest('hex')
  const signed = signer.sign({ tenant: 'default', method, target: url, body: signedForm(session, digest) })
  const named = { [vfsSessionHeader]: session, [vfsDigestHeader]: digest }
  const proof = Object.fromEntries(Object.entries(named).filter(([, value]) => value !== ''))
  return { url, payload, headers: { ...headers, ...proof, ...signed } }
}

test('no request makes a listener of the control plane fail, and every answer is a documented one', async (t) => {
  // Webhook messages go nowhere, and rate limits are out of the way.
  const conductor = await startConductor(
    t,
    {
      AGENT_ORC_WEBHOOK_KEY: randomBytes(32).toString('base64'),
      AGENT_ORC_RATELIMIT_TOPOLOGY_RPM: '100000',
    },
    asInProduction,
  )
  await conductor.database.systemBatch([
    { text: `INSERT INTO tenants (id, name) VALUES ('acme', 'Acme') ON CONFLICT DO NOTHING` },
  ])
  const { token } = await conductor.issue('acme', 'owner')
  await conductor.call(token, 'POST', '/api/profiles', { name: 'writer' })
  await conductor.call(token, 'POST', '/api/profiles', { name: 'writer-two' })
  await conductor.call(token, 'POST', '/api/secrets', { name: 'writer', value: 'x' })
  await conductor.call(token, 'POST', '/api/mcp/catalog', { name: 'writer', url: 'https://127.0.0.1.invalid/mcp' })
  await conductor.call(token, 'POST', '/api/profiles/writer/publish', { slug: 'fuzz-slug' })
  const steps = new RequestSteps(t)
  const externally = await fuzz(conductor.app, steps, (sent) => ({
    ...sent,
    headers: { ...sent.headers, authorization: `Bearer ${token}` },
  }))
  const signerOf = (url: string): Signer =>
    conductor.signers.get(url.startsWith('/internal/secrets/') ? 'vfs' : 'chat-gateway')!
  await fuzz(conductor.internal, steps, (sent, { method }) => ({
    ...sent,
    headers: {
      ...sent.headers,
      ...signerOf(sent.url).sign({ tenant: 'acme', method, target: sent.url, body: sent.payload ?? Buffer.alloc(0) }),
    },
  }))
  await steps.assertNoStall(t)
  assert.equal((await conductor.app.inject('/healthz')).statusCode, 200)
  assert.ok(externally > 30 * runs)
})

test('no request makes the gateway, a runner, a sidecar or the VirtualFS server fail, and every answer is a documented one', async (t) => {
  const conductor = await startConductor(t, {}, asInProduction)
  const { token } = await conductor.issue('default', 'owner')
  await conductor.call(token, 'POST', '/api/profiles', { name: 'writer' })
  await conductor.call(token, 'POST', '/api/profiles/writer/publish', { slug: 'fuzz-slug', rateLimitRpm: 100_000 })
  const issued = await conductor.call(token, 'POST', '/api/profiles/writer/keys', { label: 'fuzz' })
  const bearer = `Bearer ${issued.json<{ token: string }>().token}`
  const steps = new RequestSteps(t)
  await fuzz(conductor.gateway, steps, (sent) => ({
    ...sent,
    // Mostly the agent of the key: for others the request is refused before anything is read.
    url: sent.url.replace(/^\/v1\/chat\/[^/?]*\/[^/?]*/, (path) =>
      sent.url.length % 4 ? '/v1/chat/default/fuzz-slug' : path,
    ),
    headers: { ...sent.headers, authorization: bearer },
  }))
  await fuzz(conductor.runner, steps, (sent) => ({
    ...sent,
    headers: { ...sent.headers, 'x-tenant-id': 'default' },
  }))
  await fuzz(conductor.workers, steps, (sent) => sent)
  await fuzz(conductor.sidecar, steps, (sent) => sent)
  const signer = conductor.signers.get('vfs')!
  const url = `/vfs/sessions/${ofSession}`
  const payload = Buffer.from('{"allowedMounts":["objects"]}')
  const { headers } = signedForFiles(signer, 'PUT', { url, headers: { 'content-type': 'application/json' }, payload })
  assert.equal((await conductor.vfs.inject({ method: 'PUT', url, headers, payload })).statusCode, 200)
  const files = await fuzz(conductor.vfs, steps, (sent, { method }) => signedForFiles(signer, method, sent))
  assert.ok(files > 14 * runs)
  await steps.assertNoStall(t)
})
