import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { asOwnHosts, startAuthorizationServer, startExternalServer } from '#testing'
import { chat } from './client.ts'
import { type Cluster, forms, quickLeases, startCluster } from './cluster.ts'

const envWith = (...urls: readonly string[]) => ({
  AGENT_ORC_MASTER_KEY: randomBytes(32).toString('base64'),
  AGENT_ORC_PUBLIC_URL: 'http://localhost:8080',
  AGENT_ORC_MCP_ALLOW_HOSTS: asOwnHosts(urls),
})

const must = async <T>(cluster: Cluster, method: string, path: string, body?: unknown): Promise<T> => {
  const answer = await cluster.api<T>(method, path, body)
  assert.ok(answer.status < 300, `${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`)
  return answer.body
}

const call = (name: string, input: object = {}) => ({ toolCalls: [{ id: 'call_1', name, arguments: input }] })

/** What the model was told of its call. */
const heard = (cluster: Cluster): string => JSON.stringify(cluster.model.requests.at(-1)!.body.messages.at(-1))

for (const form of forms) {
  test(`${form}: an agent uses an app as the user whom it talks to, and never sees the token; who has no account gets a link`, async (t) => {
    const issuer = await startAuthorizationServer(t)
    const server = await startExternalServer(t, { 'send mail': { input: { to: { type: 'string' } } } })
    const cluster = await startCluster(t, form, { env: envWith(issuer.url, server.url) })
    const sent: (string | undefined)[] = []
    server.before = (request, response, body) => {
      const { authorization } = request.headers
      if (issuer.isValid(authorization)) {
        if (body.includes('tools/call')) sent.push(authorization)
        return false
      }
      response.writeHead(401).end()
      return true
    }
    const oauth = { grant: 'authorization_code', connection: 'user', issuer: issuer.url }
    await must(cluster, 'POST', '/api/mcp/catalog', { name: 'mail', url: server.url, oauth })
    const unknown = await cluster.api<{ error: string }>('POST', '/api/profiles', { name: 'x', apps: ['mail', 'fax'] })
    assert.deepEqual([unknown.status, unknown.body.error], [400, 'unknown_toolkit: fax'])
    const agent = await cluster.agent('clerk', { tools: ['calculate'] })
    const profile = await must<object>(cluster, 'GET', '/api/profiles/clerk')
    await must(cluster, 'PUT', '/api/profiles/clerk', { ...profile, apps: ['mail'] })
    const say = (id?: string) => chat(agent, { message: 'Write.', ...(id ? { metadata: { end_user_id: id } } : {}) })

    // Nobody has connected anything, so nobody knows what the app has.
    cluster.model.next(call('mail__connect'), { text: 'Please connect.' })
    assert.equal((await say('ann')).body['message'], 'Please connect.')
    const link = new RegExp(`${issuer.url}/authorize[^ "\\\\]*`).exec(heard(cluster))![0]
    const back = issuer.agree(link)
    assert.equal((await fetch(`${cluster.conductorUrl}${back}`)).status, 200)

    cluster.model.next({ text: 'Looked.' })
    await say('ann')
    const offered = cluster.model.requests.at(-1)!.body.tools as { readonly function: { readonly name: string } }[]
    const tools = offered.map(({ function: of }) => of.name)
    const mail = tools.find((tool) => tool.startsWith('mail__send_mail'))
    assert.ok(mail, tools.join())
    assert.ok(tools.includes('calculate'))
    cluster.model.next(call(mail, { to: 'x' }), { text: 'Sent.' })
    const reply = await say('ann')
    assert.equal(reply.body['message'], 'Sent.')
    assert.match(heard(cluster), /send mail done/)
    assert.deepEqual([server.calls, sent], [['send mail'], ['Bearer access-1']])

    for (const [id, why] of [
      ['bob', /has not been connected yet. The user connects it here, within ten minutes: http/],
      [undefined, /not known for whom this is/],
    ] as const) {
      cluster.model.next(call(mail, { to: 'x' }), { text: 'No.' })
      await say(id)
      assert.match(heard(cluster), why)
    }
    assert.equal(server.calls.length, 1)

    // Neither models nor logs nor answers have seen it.
    const [run] = await must<{ runId: string }[]>(cluster, 'GET', '/api/runs?limit=1')
    const all = [
      cluster.model.requests,
      await must(cluster, 'GET', `/api/runs/${run!.runId}`),
      await must(cluster, 'GET', '/api/runs'),
      cluster.output(),
    ]
    assert.doesNotMatch(JSON.stringify(all), /access-1|refresh-1/)
  })
}

test('a call that a conductor was about to make when it died is not made twice', async (t) => {
  const reached = Promise.withResolvers<void>()
  const held = Promise.withResolvers<void>()
  t.after(() => held.resolve())
  const server = await startExternalServer(t, {
    pay: {
      run: async () => {
        reached.resolve()
        await held.promise
        return 'paid'
      },
    },
  })
  const [env, files] = [envWith(server.url), await quickLeases(t)]
  const cluster = await startCluster(t, 'four', { env, files, apart: ['conductor'] })
  await must(cluster, 'POST', '/api/mcp/catalog', { name: 'bank', url: server.url })
  const agent = await cluster.agent('clerk', { onCrash: 'resume' })
  const profile = await must<object>(cluster, 'GET', '/api/profiles/clerk')
  await must(cluster, 'PUT', '/api/profiles/clerk', { ...profile, apps: ['bank'] })
  cluster.model.next(call('bank__pay'), { text: 'Somebody has to look.' })
  const { runId } = await must<{ runId: string }>(cluster, 'POST', '/api/runs', {
    profile: agent.profile,
    prompt: 'Pay.',
  })
  await reached.promise
  await cluster.kill('conductor')
  await cluster.start('conductor')
  for (;;) {
    const run = await must<{ status: string; result?: string }>(cluster, 'GET', `/api/runs/${runId}`)
    if (run.status === 'running') {
      await new Promise((resolve) => setTimeout(resolve, 50))
      continue
    }
    assert.deepEqual([run.status, run.result], ['ok', 'Somebody has to look.'])
    break
  }
  assert.match(heard(cluster), /whether the call was made is not known/)
  assert.deepEqual(server.calls, ['pay'])
})
