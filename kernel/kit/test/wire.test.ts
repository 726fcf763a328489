import assert from 'node:assert/strict'
import { test } from 'node:test'
import { leaving } from '#contracts/runner'
import { peerOf, servedWire, textOf, until, wire } from './support.ts'

for (const links of [false, true]) {
  const over = links ? 'over a link' : 'over HTTP'

  test(`${over}: a row's parameters, query and tenant arrive as its schemas say`, async (t) => {
    const { url } = await servedWire(t)
    const peer = await peerOf(t, url, links)
    assert.deepEqual(await peer.ask(wire.say, { params: { name: 'a b/ü' }, query: { times: 2 }, tenant: 'acme' }), {
      text: 'a b/üa b/ü',
      tenant: 'acme',
    })
    assert.deepEqual(await peer.ask(wire.say, { params: { name: 'x' } }), { text: 'x', tenant: '' })
    assert.equal(peer.linked, links)
  })

  test(`${over}: what the schemas do not allow is refused with its issues`, async (t) => {
    const { url } = await servedWire(t)
    const peer = await peerOf(t, url, links)
    const issue = (path: string) => ({ code: 'invalid_request', status: 400, message: new RegExp(path) })
    await assert.rejects(peer.ask(wire.say, { params: { name: 'x' }, query: { times: 0 } }), issue('querystring/times'))
    await assert.rejects(peer.ask(wire.say, { params: { name: 'x' }, tenant: 'far too long' }), issue('headers'))
    await assert.rejects(peer.ask(wire.echo, { body: { text: 7 as never } }), issue('body/text'))
    await assert.rejects(peer.ask(wire.echo, { body: { text: 'a', more: 1 } as never }), issue('body/more'))
    await assert.rejects(peer.ask(wire.small, { body: { text: 'x'.repeat(200) } }), {
      code: 'body_too_large',
      status: 413,
    })
    await assert.rejects(peer.ask(wire.say, { params: { name: 'a\0b' } }), { status: 404 })
    const unknown = { ...wire.small, path: '/unknown' } as const
    await assert.rejects(peer.ask(unknown, { body: { text: '' } }), { code: 'not_found', status: 404 })
  })

  test(`${over}: a refusal keeps its code, status, sentence, detail and whether it may be repeated`, async (t) => {
    const { url } = await servedWire(t)
    const peer = await peerOf(t, url, links)
    const fail = (status: number) => peer.ask(wire.fail, { params: { status } })
    await assert.rejects(fail(429), {
      code: 'too_much',
      status: 429,
      message: 'Not so much.',
      detail: { most: 3 },
      retryable: false,
    })
    await assert.rejects(fail(503), { code: 'not_now', status: 503, retryable: true })
    await assert.rejects(fail(500), { code: 'failed', status: 500, retryable: false })
    assert.equal(await fail(404), undefined)
    await assert.rejects(peer.ask(wire.wrong, {}), { code: /bad_answer|internal/ })
  })

  test(`${over}: bytes of any size go both ways`, async (t) => {
    const { url } = await servedWire(t)
    const peer = await peerOf(t, url, links)
    for (const size of [0, 1, 70_000, 3_000_000]) {
      const { bytes, headers } = await peer.ask(wire.load, { params: { size } })
      assert.deepEqual(
        [bytes.length, headers['content-type'], headers['x-size']],
        [size, 'application/gzip', String(size)],
      )
      assert.ok(bytes.every((byte) => byte === 7))
    }
    const stored = await peer.ask(wire.store, { body: Buffer.alloc(5), headers: { 'content-type': 'text/x-any' } })
    assert.deepEqual(stored, { length: 5, type: 'text/x-any' })
    // Larger than a frame: it finds another way.
    assert.deepEqual(await peer.ask(wire.echo, { body: { text: 'x'.repeat(3_000_000) } }), { length: 3_000_000 })
    await assert.rejects(peer.ask(wire.load, { params: { size: 9_000_000 } }), { code: 'bad_answer' })
  })

  test(`${over}: lines come whole and in order, however much they are, next to each other`, async (t) => {
    const served = await servedWire(t)
    const peer = await peerOf(t, served.url, links)
    const before = served.connections
    const read = async (count: number, size: number): Promise<void> => {
      const { lines } = await peer.ask(wire.lines, { body: { count, size } })
      let seq = 0
      for await (const chunk of lines) {
        assert.equal(chunk.at(-1), 0x0a)
        for (const line of chunk.toString().trimEnd().split('\n')) assert.equal(parseInt(line, 10), seq++)
      }
      assert.equal(seq, count)
    }
    await Promise.all([read(5_000, 90), read(3, 2_000_000), ...Array.from({ length: 60 }, () => read(50, 20))])
    if (links) assert.equal(served.connections, before)
  })

  test(`${over}: a source is not pulled while its reader does not read, and others are not held up`, async (t) => {
    const served = await servedWire(t)
    const peer = await peerOf(t, served.url, links)
    const slow = await peer.ask(wire.lines, { body: { count: 2_000, size: 65_000 } })
    await slow.lines.next()
    const { lines } = await peer.ask(wire.lines, { body: { count: 20_000 } })
    assert.equal((await textOf(lines)).split('\n').length - 1, 20_000)
    const pulled = served.seen.pulled - 20_000
    assert.ok(pulled < 500, `${pulled} lines of 65 kB were pulled`)
    await slow.lines.return!()
  })

  test(`${over}: the server learns why a reader leaves`, async (t) => {
    const served = await servedWire(t)
    const peer = await peerOf(t, served.url, links)
    for (const [reason, heard] of [
      [leaving, links ? leaving : 'client_gone'],
      ['cancel', links ? 'cancelled' : 'client_gone'],
      ['timeout', links ? 'timeout' : 'client_gone'],
      ['budget_exceeded', links ? 'budget_exceeded' : 'client_gone'],
      ['return', links ? 'cancelled' : 'client_gone'],
    ] as const) {
      const reader = new AbortController()
      const { lines } = await peer.ask(wire.hold, { signal: reader.signal })
      assert.equal(String((await lines.next()).value), 'first\n')
      if (reason === 'return') await lines.return!()
      else {
        const next = lines.next()
        reader.abort(reason)
        await assert.rejects(next)
      }
      await until(() => served.seen.ended.length > 0)
      assert.deepEqual(served.seen.ended.splice(0), [heard])
    }
  })

  test(`${over}: while the server drains, streams go on, and each new exchange has a connection of its own and no link`, async (t) => {
    const drained = Promise.withResolvers<void>()
    t.after(() => drained.resolve())
    const served = await servedWire(t, () => drained.promise)
    const peer = await peerOf(t, served.url, links)
    const { lines } = await peer.ask(wire.hold, {})
    assert.equal(String((await lines.next()).value), 'first\n')
    const say = () => peer.ask(wire.say, { params: { name: 'x' } })
    const stopped = served.kernel.stop()
    await until(() => !peer.linked)
    await say()
    const before = served.connections
    for (let i = 0; i < 3; i++) assert.equal((await say()).text, 'x')
    assert.deepEqual([served.connections - before, peer.linked], [3, false])
    const rest = textOf(lines)
    drained.resolve()
    assert.equal(await rest, 'shutdown\n')
    await stopped
  })

  test(`${over}: streams end in order when the server stops, and what comes later was certainly not begun`, async (t) => {
    const served = await servedWire(t)
    const peer = await peerOf(t, served.url, links)
    const { lines } = await peer.ask(wire.hold, {})
    assert.equal(String((await lines.next()).value), 'first\n')
    const rest = textOf(lines)
    const stopped = served.kernel.stop()
    assert.equal(await rest, 'shutdown\n')
    await stopped
    for (let certain = false; !certain;) {
      const error = (await peer.ask(wire.say, { params: { name: 'x' } }).catch((e: unknown) => e)) as {
        code: string
        detail: { asked: boolean }
      }
      assert.equal(error.code, 'lost')
      certain = !error.detail.asked
    }
  })
}

test('access is asked for over a link as well', async (t) => {
  const { url } = await servedWire(t)
  const peer = await peerOf(t, url, true)
  await assert.rejects(peer.ask(wire.secret, {}), { status: 404 })
})

test('a link that was lost is opened again, and its exchanges are lost, not begun anew', async (t) => {
  const served = await servedWire(t)
  const sockets = new Set<{ destroy(): void }>()
  served.kernel.listeners['conductor']!.server.on('connection', (socket) => sockets.add(socket))
  const peer = await peerOf(t, served.url, true)
  const { lines } = await peer.ask(wire.hold, {})
  await lines.next()
  const next = lines.next()
  for (const socket of sockets) socket.destroy()
  await assert.rejects(next, { code: 'lost', detail: { asked: true, answered: true } })
  await until(() => served.seen.holding === 0)
  assert.deepEqual(served.seen.ended, ['client_gone'])
  while (!peer.linked) await peer.ask(wire.say, { params: { name: 'x' } }).catch(() => undefined)
})
