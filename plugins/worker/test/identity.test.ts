import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { BootError, definePlugin } from '#kernel'
import { ModelEgress } from '#contracts/model'
import { testKernel } from '#testing'
import { WorkerIdentity } from '../identity/identity.ts'
import workerIdentity from '../identity/index.ts'

interface Asked {
  readonly url: string
  readonly headers: IncomingHttpHeaders
}

async function startRunner(t: TestContext) {
  const asked: Asked[] = []
  const server = createServer((request, response) => {
    asked.push({ url: request.url!, headers: request.headers })
    response.end('{}')
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, asked }
}

async function worker(t: TestContext, config: Record<string, unknown>) {
  const found: { identity?: WorkerIdentity; egress?: ModelEgress } = {}
  const probe = definePlugin({
    name: 'probe',
    requires: { identity: WorkerIdentity, egress: ModelEgress },
    setup: async ({ deps }) => (Object.assign(found, deps), {}),
  })
  await testKernel(t, [{ name: 'worker-identity', plugin: workerIdentity, config }, probe], { listeners: [] })
  return { identity: found.identity!, egress: found.egress! }
}

test('model calls go to the session’s path of the runner, with the token of the moment in place of any other', async (t) => {
  const { url, asked } = await startRunner(t)
  const { identity, egress } = await worker(t, { runnerUrl: `${url}/prefix/`, sessionId: 's-1', token: 'one' })
  const base = egress.baseUrl('openai')
  assert.equal(base, `${url}/prefix/runner/worker/s-1/models/openai`)
  const post = async (headers: Headers | Record<string, string>, at = base) => {
    await (await egress.fetch(`${at}/chat/completions`, { method: 'POST', headers, body: '{}' })).text()
    return asked.at(-1)!
  }
  const first = await post({ Authorization: 'Bearer the-vendor-key', 'Content-Type': 'application/json' })
  assert.equal(first.url, '/prefix/runner/worker/s-1/models/openai/chat/completions')
  assert.equal(first.headers.authorization, 'Bearer one')
  assert.equal(first.headers['content-type'], 'application/json')
  identity.renew('two')
  assert.equal(egress.token(), 'two')
  assert.equal((await post(new Headers({ authorization: 'x' }))).headers.authorization, 'Bearer two')
})

test('a provider that was set up before a warm worker got its session calls for that session', async (t) => {
  const { url, asked } = await startRunner(t)
  const { identity, egress } = await worker(t, { runnerUrl: url, sessionId: 'slot-1', token: 'one' })
  const old = egress.baseUrl('openai')
  identity.bind('s-2', 'two')
  assert.equal(egress.baseUrl('openai'), `${url}/runner/worker/s-2/models/openai`)
  for (const base of [old, egress.baseUrl('openai')]) {
    await (await egress.fetch(`${base}/models`, { method: 'POST', body: '' })).text()
    assert.equal(asked.at(-1)!.url, '/runner/worker/s-2/models/openai/models')
    assert.equal(asked.at(-1)!.headers.authorization, 'Bearer two')
  }
})

test('what is no URL, token or session id is refused at the boot, and not repeated', async (t) => {
  const good = { runnerUrl: 'http://runner', sessionId: 's-1', token: 'one' }
  for (const [wrong, says] of [
    [{ runnerUrl: 'runner:7060' }, /runnerUrl expects an http or https URL/],
    [{ sessionId: '../etc' }, /sessionId expects a session id/],
    [{ token: 'a\nX-Evil: b' }, /token expects a token without spaces/],
  ] as const) {
    await assert.rejects(worker(t, { ...good, ...wrong }), (error) => {
      assert.ok(error instanceof BootError)
      assert.match(error.message, says)
      assert.doesNotMatch(error.message, /Evil/)
      return true
    })
  }
})

const module = JSON.stringify(import.meta.resolve('../identity/identity.ts'))
const script = `
import { readFileSync } from 'node:fs'
import { blankInEnvironment } from ${module}
const done = await blankInEnvironment('SECRET')
console.log(JSON.stringify({ done, shown: readFileSync('/proc/self/environ', 'latin1').split('\\0') }))`

const shown = (env: Record<string, string>) =>
  JSON.parse(execFileSync(process.execPath, ['--input-type=module', '--eval', script], { env, encoding: 'utf8' })) as {
    done: boolean
    shown: string[]
  }

test(
  'the value of a variable is gone from what the kernel shows, and nothing else is',
  { skip: process.platform !== 'linux' },
  () => {
    for (const env of [
      { SECRET: 'größe', OTHER: 'größe', NO_SECRET: 'größe' },
      { OTHER: 'x SECRET=y', SECRET: 'abc', LAST: 'abc' },
      { OTHER: 'x', LAST: 'y' },
      { OTHER: 'x', SECRET: '' },
    ] as Record<string, string>[]) {
      const { done, shown: entries } = shown(env)
      assert.equal(done, true)
      const { SECRET, ...others } = env
      const kept = Object.entries(others).map(([name, value]) => `${name}=${Buffer.from(value).toString('latin1')}`)
      assert.deepEqual(
        entries.filter((entry) => entry !== '').toSorted(),
        [...kept, ...(SECRET === undefined ? [] : ['SECRET='])].toSorted(),
      )
    }
  },
)
