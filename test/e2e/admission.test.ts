import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chat, chatStream, get } from './client.ts'
import { type Agent, forms, startCluster } from './cluster.ts'

for (const form of forms) {
  test(`${form}: keys, origins, rates, ids and bodies are checked at the door`, async (t) => {
    const cluster = await startCluster(t, form)
    const agent = await cluster.agent('doors', { publish: { allowedOrigins: ['https://app.example'] } })
    const other = await cluster.agent('neighbour')

    await t.test('a foreign origin is refused, an allowed one gets its CORS headers, no origin is fine', async () => {
      const foreign = await chat(agent, { message: 'hi' }, { origin: 'https://evil.example' })
      assert.deepEqual([foreign.status, foreign.body.error], [403, 'origin_not_allowed'])
      const allowed = await chat(agent, { message: 'hi' }, { origin: 'https://app.example' })
      assert.equal(allowed.status, 200)
      assert.equal(allowed.headers.get('access-control-allow-origin'), 'https://app.example')
      const preflight = await fetch(agent.url, {
        method: 'OPTIONS',
        headers: {
          origin: 'https://app.example',
          'access-control-request-method': 'POST',
          'access-control-request-headers': 'authorization,content-type',
        },
      })
      assert.equal(preflight.status, 204)
      assert.equal(preflight.headers.get('access-control-allow-origin'), 'https://app.example')
      assert.match(preflight.headers.get('access-control-allow-headers') ?? '', /authorization/i)
    })

    await t.test('unknown, foreign and malformed ids answer alike', async () => {
      const mine = await chat(agent, { message: 'hi' })
      const cases = await Promise.all([
        chat(other, { message: 'hi', conversation_id: mine.body.conversation_id }),
        chat(other, { message: 'hi', conversation_id: 'conv_unknown' }),
      ])
      for (const reply of cases) assert.deepEqual([reply.status, reply.body.error], [404, 'conversation_not_found'])
      const foreign = await get(other, `/runs/${mine.body.public_run_id as string}`)
      const unknown = await get(other, '/runs/prun_unknown')
      assert.equal(foreign.status, 404)
      assert.deepEqual([foreign.status, foreign.body.error], [unknown.status, unknown.body.error])
    })

    await t.test('oversized, malformed and misshapen bodies are client errors and start nothing', async () => {
      const send = async (body: string, type = 'application/json'): Promise<[number, unknown]> => {
        const response = await fetch(agent.url, {
          method: 'POST',
          headers: { authorization: `Bearer ${agent.key}`, 'content-type': type },
          body,
        })
        return [response.status, ((await response.json()) as { error: string }).error]
      }
      const before = cluster.model.requests.length
      assert.deepEqual(await send(JSON.stringify({ message: 'x'.repeat(3_000_000) })), [413, 'body_too_large'])
      assert.deepEqual(await send('{"message":'), [400, 'invalid_request'])
      assert.deepEqual(await send('{}'), [400, 'invalid_request'])
      assert.deepEqual(await send('{"message":42}'), [400, 'invalid_request'])
      assert.deepEqual(await send(`{"message":"x","metadata":${'['.repeat(100)}${']'.repeat(100)}}`), [
        400,
        'invalid_request',
      ])
      assert.deepEqual(await send('message=x', 'application/x-www-form-urlencoded'), [415, 'unsupported_media_type'])
      assert.equal(cluster.model.requests.length, before)
    })

    await t.test(
      'over the rate of its key a caller is told when to come back; other keys are not affected',
      async () => {
        const limited = await cluster.agent('limited', { publish: { rateLimitRpm: 3 } })
        const replies = []
        for (let i = 0; i < 5; i++) replies.push(await chat(limited, { message: 'hi' }))
        assert.deepEqual(
          replies.map((r) => r.status),
          [200, 200, 200, 429, 429],
        )
        const refused = replies[4]!
        assert.equal(refused.body.error, 'rate_limited')
        assert.match(refused.headers.get('retry-after') ?? '', /^\d+$/)
        assert.ok(refused.headers.get('ratelimit'))
        assert.ok(refused.headers.get('ratelimit-policy'))
        assert.equal((await chat(other, { message: 'hi' })).status, 200)
      },
    )

    await t.test('a key serves its own agent only, and a revoked key is refused on the very next request', async () => {
      const crossed: Agent = { ...agent, key: other.key }
      assert.equal((await chat(crossed, { message: 'hi' })).status, 401)
      assert.equal((await chat({ ...agent, key: 'ao_dev_nonsense' }, { message: 'hi' })).status, 401)
      assert.equal((await chat(other, { message: 'hi' })).status, 200)
      assert.equal((await cluster.api('DELETE', `/api/profiles/${other.profile}/keys/${other.keyId}`)).status, 204)
      const revoked = await chat(other, { message: 'hi' })
      assert.deepEqual([revoked.status, revoked.body.error], [401, 'unauthorized'])
      const streamed = await chatStream(other, { message: 'hi' })
      assert.equal(streamed.response.status, 401)
      streamed.leave()
    })

    await t.test('a disabled or unpublished agent is not published', async () => {
      const path = `/api/profiles/${agent.profile}/published`
      assert.equal((await cluster.api('PATCH', path, { enabled: false })).status, 200)
      const disabled = await chat(agent, { message: 'hi' })
      assert.deepEqual([disabled.status, disabled.body.error], [404, 'not_published'])
      assert.equal((await cluster.api('PATCH', path, { enabled: true })).status, 200)
      assert.equal((await chat(agent, { message: 'hi' })).status, 200)
      assert.equal((await cluster.api('DELETE', path)).status, 204)
      assert.ok([401, 404].includes((await chat(agent, { message: 'hi' })).status))
    })

    await t.test(
      'health and readiness answer without a key, and so do metrics and documents, in their place',
      async () => {
        const bases = { gateway: cluster.gatewayUrl, conductor: cluster.conductorUrl, runner: cluster.runnerUrl }
        for (const [role, base] of Object.entries({ ...bases, internal: cluster.internalUrl })) {
          const health = await fetch(`${base}/healthz`)
          assert.deepEqual([health.status, await health.text()], [200, 'ok'])
          assert.equal((await fetch(`${base}/readyz`)).status, 200)
          const operations = cluster.operationsUrl(role === 'internal' ? 'conductor' : (role as keyof typeof bases))
          const apart = form === 'four'
          for (const path of ['/metrics', '/openapi.json']) {
            assert.equal((await fetch(base + path)).status, apart ? 404 : 200, `${role}${path}`)
          }
          assert.match(await (await fetch(`${operations}/metrics`)).text(), /process_cpu/)
          const found = await fetch(apart ? `${operations}/openapi/${role}.json` : `${base}/openapi.json`)
          const document = (await found.json()) as { openapi: string; info: { title: string } }
          assert.match(document.openapi, /^3\.1/)
          assert.equal(document.info.title, `Agent Orc ${role}`)
        }
        const counted = await fetch(`${cluster.operationsUrl('gateway')}/metrics`)
        assert.match(await counted.text(), /chat_gateway_requests_total/)
      },
    )
  })
}
