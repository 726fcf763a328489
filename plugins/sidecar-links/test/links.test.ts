import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { AppError, capability, definePlugin, linesOf } from '#kernel'
import { LocalSidecars, type SidecarLink, Sidecars } from '#contracts/sidecar'
import { fake, testKernel } from '#testing'
import sidecarLinks from '../index.ts'
import { createSidecars } from '../index.ts'
import { createFakeSidecar, envelope, type FakeSidecar, serve, serveLinked } from './fake-sidecar.ts'

/** Boots the plugin and takes out what it provides. */
async function sidecarsOf(t: TestContext, config: object, local?: SidecarLink): Promise<Sidecars> {
  let found: Sidecars | undefined
  const Done = capability<true>('test.done')
  const taker = definePlugin({
    name: 'taker',
    requires: { sidecars: Sidecars },
    provides: { done: Done },
    async setup(ctx) {
      found = ctx.deps.sidecars
      return { done: true as const }
    },
  })
  const locals = local ? [fake(LocalSidecars, { local })] : []
  await testKernel(t, [{ name: 'sidecar-links', plugin: sidecarLinks, config }, taker, ...locals])
  return found!
}

type Provider = (t: TestContext) => Promise<{ link: SidecarLink; sidecar: FakeSidecar }>
const providers: Record<string, Provider> = {
  async 'in process'(t) {
    const sidecar = createFakeSidecar()
    return { sidecar, link: (await sidecarsOf(t, {}, sidecar)).forRuntime('general') }
  },
  async 'over HTTP'(t) {
    const sidecar = createFakeSidecar()
    const { url } = await serve(t, sidecar)
    return { sidecar, link: (await sidecarsOf(t, { url })).forRuntime('general') }
  },
  async 'over a link'(t) {
    const sidecar = createFakeSidecar()
    const { url, requests } = await serveLinked(t, sidecar)
    const link = (await sidecarsOf(t, { url })).forRuntime('general')
    // It asks until no request goes over HTTP any more.
    for (let before = -1; before !== requests();) {
      before = requests()
      await link.health()
    }
    return { sidecar, link }
  },
}

const until = async (condition: () => boolean): Promise<void> => {
  while (!condition()) await turn()
}

const linesFrom = async (chunks: AsyncIterable<Buffer>): Promise<Record<string, unknown>[]> => {
  const lines: Record<string, unknown>[] = []
  for await (const chunk of chunks) {
    assert.equal(chunk.at(-1), 0x0a)
    for (const line of linesOf(chunk)) lines.push(JSON.parse(line.toString()) as Record<string, unknown>)
  }
  return lines
}

for (const [name, provider] of Object.entries(providers)) {
  test(`${name}: health names the runtimes`, async (t) => {
    const { link } = await provider(t)
    const health = await link.health()
    assert.deepEqual(health.runtimes, ['general', 'runtime_a'])
    assert.equal(health.instance, 'i-1')
  })

  test(`${name}: a run streams whole stamped lines in order and ends with result`, async (t) => {
    const { link } = await provider(t)
    const lines = await linesFrom(link.run(envelope('r1', '3000'), new AbortController().signal))
    assert.equal(lines.length, 3002)
    assert.deepEqual(
      lines.map((line) => line['seq']),
      lines.map((_, i) => i + 2),
    )
    assert.equal(lines.at(-1)!['type'], 'result')
    assert.equal(lines[7]!['text'], '6 äöü ')
  })

  test(`${name}: aborting the signal ends the sidecar's turn`, async (t) => {
    const { link, sidecar } = await provider(t)
    const abort = new AbortController()
    const chunks = link.run(envelope('r1', 'hang'), abort.signal)[Symbol.asyncIterator]()
    assert.equal((await chunks.next()).done, false)
    assert.ok(sidecar.running.has('r1'))
    abort.abort()
    await chunks.next().catch(() => {})
    await until(() => sidecar.running.size === 0)
  })

  test(`${name}: no stream waits for another`, async (t) => {
    const { link, sidecar } = await provider(t)
    const abort = new AbortController()
    const runs = Array.from({ length: 150 }, (_, i) =>
      linesFrom(link.run(envelope(`r${i}`, 'hang'), abort.signal)).catch(() => {}),
    )
    await until(() => sidecar.running.size === 150)
    abort.abort()
    await Promise.all(runs)
    await until(() => sidecar.running.size === 0)
  })

  test(`${name}: a refusal carries the sidecar's own code`, async (t) => {
    const { link } = await provider(t)
    await assert.rejects(linesFrom(link.run(envelope('r1', 'refuse'), new AbortController().signal)), {
      code: 'sidecar_full',
      status: 429,
      message: 'Too many runs.',
    })
  })

  test(`${name}: state goes out and in with its type and handle, and a corrupt bundle is 400`, async (t) => {
    const { link, sidecar } = await provider(t)
    assert.equal(await link.exportState('general', 's 1'), undefined)
    await link.hydrate('general', 's 1', {
      bytes: Buffer.from([0, 1, 255]),
      contentType: 'application/gzip',
      runtimeSessionId: 'vendor-7',
    })
    const bundle = await link.exportState('general', 's 1')
    assert.deepEqual(
      { ...bundle, bytes: [...bundle!.bytes] },
      { bytes: [0, 1, 255], contentType: 'application/gzip', runtimeSessionId: 'vendor-7' },
    )
    const corrupt = { bytes: Buffer.from('corrupt'), contentType: 'application/json' }
    await assert.rejects(link.hydrate('general', 's 1', corrupt), { code: 'corrupt_state', status: 400 })
    await link.forget('general', 's 1')
    assert.equal(sidecar.states.size, 0)
  })
}

test('a refused connection is sidecar_unreachable, and may be retried', async (t) => {
  const { url, server } = await serve(t, createFakeSidecar())
  await new Promise((resolve) => server.close(resolve))
  const link = (await sidecarsOf(t, { general: url })).forRuntime('general')
  const run = linesFrom(link.run(envelope('r1', '1'), new AbortController().signal))
  await assert.rejects(run, { code: 'sidecar_unreachable', status: 503, retryable: true })
})

test('a connection that dies mid-run is sidecar_lost, and the torn line is dropped', async (t) => {
  const sidecar = createFakeSidecar()
  const { url, sockets } = await serve(t, {
    ...sidecar,
    async *run() {
      yield Buffer.from('{"type":"progress"}\n{"type":"assi')
      await until(() => sockets.size > 0)
      setImmediate(() => sockets.forEach((socket) => socket.destroy()))
      await new Promise(() => {})
    },
  })
  const link = (await sidecarsOf(t, { url })).forRuntime('general')
  const got: string[] = []
  await assert.rejects(
    async () => {
      for await (const chunk of link.run(envelope('r1', '1'), new AbortController().signal)) got.push(chunk.toString())
    },
    { code: 'sidecar_lost' },
  )
  assert.deepEqual(got, ['{"type":"progress"}\n'])
})

test('a run read to its end leaves its connection to the next one; a run left early destroys it', async (t) => {
  const sidecar = createFakeSidecar()
  const { url, sockets } = await serve(t, sidecar)
  const link = (await sidecarsOf(t, { url })).forRuntime('general')
  const { signal } = new AbortController()
  await linesFrom(link.run(envelope('r1', '1'), signal))
  const [first] = sockets
  // The pool frees a connection in the turn after the response ended.
  await turn()
  await linesFrom(link.run(envelope('r2', '1'), signal))
  assert.equal(sockets.size, 1)
  await turn()
  for await (const _ of link.run(envelope('r3', 'hang'), signal)) break
  await until(() => sidecar.running.size === 0 && first!.destroyed)
})

test('a reader that stops reading stops the sidecar from sending', async (t) => {
  let sent = 0
  const { url } = await serve(t, {
    ...createFakeSidecar(),
    async *run() {
      const line = Buffer.from(`${'x'.repeat(65_535)}\n`)
      for (; sent < 2_000; sent++) {
        yield line
        await turn()
      }
    },
  })
  // The fake ignores write(): what bounds the link is what it holds unread, seen by how much arrives after one read.
  const link = (await sidecarsOf(t, { url })).forRuntime('general')
  const chunks = link.run(envelope('r1', '1'), new AbortController().signal)[Symbol.asyncIterator]()
  await chunks.next()
  await until(() => sent === 2_000)
  const next = await chunks.next()
  assert.ok(next.value!.length < 1024 * 1024, `${next.value!.length} bytes were held`)
  await chunks.return!()
})

test('runtimes are the configured ones and those the shared sidecar reports', async (t) => {
  const { url } = await serve(t, createFakeSidecar())
  const sidecars = await sidecarsOf(t, { url, runtimeB: 'http://127.0.0.1:9' })
  assert.deepEqual(
    sidecars.slots().map((slot) => [slot.runtime, slot.mode, slot.url]),
    [
      ['general', 'unknown', url],
      ['runtime_a', 'unknown', url],
      ['runtime_b', 'sidecar', 'http://127.0.0.1:9'],
    ],
  )
  assert.deepEqual(await sidecars.runtimes(), ['general', 'runtime_a', 'runtime_b'])
  assert.deepEqual(
    sidecars.slots().map((slot) => slot.mode),
    ['sidecar', 'sidecar', 'sidecar'],
  )
})

test('a sidecar that was silent for long is not announced any more, until it answers again', async () => {
  let now = 0
  let away = false
  const link = {
    async health() {
      if (away) throw new Error('connection refused')
      return { ok: true, runtime: 'all', runtimes: ['general'], instance: 'i', inflight: 0 }
    },
  } as unknown as SidecarLink
  const sidecars = createSidecars(new Map(), { link, url: 'http://sidecar' }, () => now)
  assert.deepEqual(await sidecars.runtimes(), ['general'])
  away = true
  now = 9_000
  assert.deepEqual(await sidecars.runtimes(), ['general'], 'it may just be restarting')
  now = 11_000
  assert.deepEqual(await sidecars.runtimes(), [])
  away = false
  now = 13_000
  assert.deepEqual(await sidecars.runtimes(), ['general'])
})

test('without any sidecar a runtime is runtime_unavailable', async (t) => {
  const sidecars = await sidecarsOf(t, {})
  assert.throws(() => sidecars.forRuntime('general'), { code: 'runtime_unavailable', status: 503 })
  assert.deepEqual(await sidecars.runtimes(), [])
  assert.deepEqual(
    sidecars.slots().map((slot) => slot.mode),
    ['stub', 'stub', 'stub'],
  )
})

test('a sidecar that reports only its one runtime is understood', async (t) => {
  const custom = { health: async () => ({ ok: true, runtime: 'runtime_a' }) } as unknown as SidecarLink
  const { url } = await serve(t, custom)
  assert.deepEqual(await (await sidecarsOf(t, { url })).runtimes(), ['runtime_a'])
})

test('a sidecar without state routes refuses a state, but not as an unknown session', async (t) => {
  const missing = async (): Promise<never> => {
    throw new AppError('not_found', 404)
  }
  const { url } = await serve(t, { ...createFakeSidecar(), hydrate: missing, forget: missing })
  const link = (await sidecarsOf(t, { url })).forRuntime('general')
  const bundle = { bytes: Buffer.from('{}'), contentType: 'application/json' }
  await assert.rejects(link.hydrate('general', 's1', bundle), { code: 'sidecar_keeps_no_state', status: 502 })
  await link.forget('general', 's1')
})

test('a sidecar whose server knows no DELETE cannot forget, and nothing is wrong with that', async (t) => {
  const server = createServer((_request, response) => void response.writeHead(501).end('Unsupported method')).listen(0)
  t.after(() => server.close())
  await once(server, 'listening')
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  await (await sidecarsOf(t, { url })).forRuntime('general').forget('general', 's1')
})

test("a custom sidecar's instance is the one of its header", async (t) => {
  const server = createServer((_request, response) => {
    response.setHeader('x-agent-orc-worker-instance', 'w-1').end('{"ok":true,"runtime":"general"}')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const address = server.address()
  const url = `http://127.0.0.1:${typeof address === 'object' ? address?.port : ''}`
  assert.equal((await (await sidecarsOf(t, { url })).forRuntime('general').health()).instance, 'w-1')
})

test('a runtime with a sidecar of its own is served there, the others by the shared one', async (t) => {
  const [shared, own] = [createFakeSidecar(), createFakeSidecar()]
  const [{ url }, { url: ownUrl }] = [await serve(t, shared), await serve(t, own)]
  for (const [setting, runtime] of [
    ['general', 'general'],
    ['runtimeA', 'runtime_a'],
    ['runtimeB', 'runtime_b'],
  ] as const) {
    const sidecars = await sidecarsOf(t, { url, [setting]: ownUrl })
    const bundle = { bytes: Buffer.from('{}'), contentType: 'application/json' }
    for (const name of ['general', 'runtime_a', 'runtime_b']) {
      await sidecars.forRuntime(name).hydrate(name, 's1', bundle)
      assert.deepEqual(
        [own.states.has(`${name}/s1`), shared.states.has(`${name}/s1`)],
        name === runtime ? [true, false] : [false, true],
      )
      own.states.clear()
      shared.states.clear()
    }
  }
})
