import assert from 'node:assert/strict'
import { once } from 'node:events'
import { test, type TestContext } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { AppError, definePlugin } from '#kernel'
import { type ExecuteRun, leaving, type RunnerLink } from '#contracts/runner'
import { runnerWire } from '#contracts/wire/runner'
import { acceptLinks, createPeers, serve, trusted } from '#kit'
import { ForbiddenAddressError, type Resolve } from '#kit/outbound'
import { testKernel } from '#testing'
import { createRemoteRunner, runnerPeers } from '../remote-runner.ts'

const run: ExecuteRun = { runId: 'r1', sessionId: 's1', prompt: 'x', firstSeq: 1, timeoutMs: 1_000, keepMs: 5_000 }
const from = { sessionId: 's1', runId: 'r1', afterSeq: 3, epoch: 1 }

/** A runner that holds every run until its reader leaves, and records what it was asked. */
async function remote(t: TestContext, links: boolean) {
  const heard: unknown[] = []
  let info: object = {}
  async function* lines(signal: AbortSignal, seq: number): AsyncGenerator<Buffer> {
    yield Buffer.from(`{"seq":${seq}}\n`)
    if (!signal.aborted) await once(signal, 'abort')
    heard.push(signal.reason)
  }
  const plugin = definePlugin({
    name: 'served-runner',
    async setup({ routes }) {
      routes('runner', async (app) => {
        acceptLinks(app, trusted)
        serve(app, runnerWire.info, () => ({ json: { hash: '0123abcd', capabilities: [], ...info } }))
        serve(app, runnerWire.execute, ({ body, signal }) => {
          if (body.prompt === 'full') throw new AppError('runner_full', 503, { retryable: true })
          return { lines: lines(signal, body.firstSeq) }
        })
        serve(app, runnerWire.attach, ({ body, signal }) => ({ lines: lines(signal, body.afterSeq + 1) }))
        serve(
          app,
          runnerWire.cancelRun,
          ({ params, query }) => void heard.push(`cancel ${params.runId} ${query.reason}`),
        )
      })
      return {}
    },
  })
  const kernel = await testKernel(t, [plugin], { listeners: ['runner'], listen: true })
  const url = kernel.urls['runner']!
  const peers = createPeers({ ...runnerPeers(), identity: { tenantHeader: 'x-tenant-id' }, links })
  t.after(() => peers.close())
  const peer = peers.at(url)
  const link: RunnerLink = createRemoteRunner(url, peer)
  while (links && !peer.linked) await link.info()
  return { link, heard, kernel, say: (said: object) => (info = said) }
}

const until = async (condition: () => boolean): Promise<void> => {
  while (!condition()) await turn()
}

for (const links of [false, true]) {
  const over = links ? 'over a link' : 'over HTTP'

  test(`${over}: a kept run is left, or ended, as its reader's signal says`, async (t) => {
    const { link, heard } = await remote(t, links)
    const read = {
      execute: (signal: AbortSignal) => link.execute('acme', run, signal),
      attach: (signal: AbortSignal) => link.attach('acme', from, signal),
    }
    for (const [name, open] of Object.entries(read)) {
      const seq = name === 'execute' ? 1 : 4
      for (const [end, expected] of [
        [leaving, links ? [leaving] : ['client_gone']],
        ['cancelled', links ? ['cancelled'] : ['cancel r1 undefined', 'client_gone']],
        ['timeout', links ? ['timeout'] : ['cancel r1 timeout', 'client_gone']],
        ['return', links ? ['cancelled'] : ['cancel r1 undefined', 'client_gone']],
      ] as const) {
        const reader = new AbortController()
        const chunks = open(reader.signal)[Symbol.asyncIterator]()
        assert.equal(String((await chunks.next()).value), `{"seq":${seq}}\n`)
        if (end === 'return') await chunks.return!()
        else {
          reader.abort(end)
          await assert.rejects(chunks.next())
        }
        await until(() => heard.length === expected.length)
        assert.deepEqual(heard.splice(0).toSorted(), [...expected], `${name} ${end}`)
      }
    }
  })

  test(`${over}: whether a run may have begun is known`, async (t) => {
    const { link, kernel, heard } = await remote(t, links)
    const { signal } = new AbortController()
    const attempt = (prompt = 'x') => link.execute('acme', { ...run, prompt }, signal)[Symbol.asyncIterator]()
    await assert.rejects(attempt('full').next(), { code: 'runner_full', status: 503, retryable: true })
    const chunks = attempt()
    await chunks.next()
    const cut = chunks.next()
    const stopped = kernel.stop()
    assert.equal((await cut).done, true)
    await stopped
    assert.deepEqual(heard, ['shutdown'])
    for (let certain = false; !certain;) {
      await assert.rejects(attempt().next(), (error: AppError) => {
        certain = error.retryable
        return error.code === 'runner_unreachable' && error.status === 503
      })
    }
  })

  test(`${over}: a runner that leaves out what older ones do not say has no sandboxes, and does not know`, async (t) => {
    const { link, say } = await remote(t, links)
    say({ capabilitiesKnown: true, instance: 'i-1' })
    const { substrates, substratesKnown, capabilitiesKnown, instance } = await link.info()
    assert.deepEqual([substrates, substratesKnown, capabilitiesKnown, instance], [[], false, true, 'i-1'])
    assert.equal(link.hash, '0123abcd')
    say({ capabilities: 'all of them' })
    await assert.rejects(link.info())
  })
}

test('a name that leads to a metadata service is not asked, whatever it led to before', async (t) => {
  const asked: string[] = []
  const resolve: Resolve = (host, callback) => {
    asked.push(host)
    callback(null, [{ address: asked.length === 1 ? '169.254.169.254' : 'fd00:ec2::254', family: 4 }])
  }
  const peers = createPeers({ ...runnerPeers(resolve), identity: { tenantHeader: 'x-tenant-id' } })
  t.after(() => peers.close())
  const link = createRemoteRunner('http://runner.example:7060', peers.at('http://runner.example:7060'))
  for (const times of [1, 2]) {
    await assert.rejects(link.info(), (error: AppError) => {
      assert.equal(error.code, 'runner_unreachable')
      assert.ok(error.cause instanceof ForbiddenAddressError)
      return true
    })
    assert.equal(asked.length, times, 'each connection looks anew')
  }
})
