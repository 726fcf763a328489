import assert from 'node:assert/strict'
import { test } from 'node:test'
import { connectLink } from '../link/caller.ts'
import { ForbiddenAddressError, guardedLookup, isNetworkAddress } from '../outbound.ts'
import { Connection, initialCredit, kinds, maxDataBytes, maxOpenBytes, u32 } from '../link/connection.ts'
import { held, linkOf, manyLines, type Seen, textOf, until } from './support.ts'

const lost = (cause: Error): Error => cause
const seenNothing = (): Seen => ({ pulled: 0, ended: [], holding: 0 })
const frame = (kind: number, stream: number, payload: Buffer = Buffer.alloc(0), length = payload.length): Buffer =>
  Buffer.concat([u32(length), Buffer.of(kind), u32(stream), payload])
const opening = (route: string): Buffer => {
  const line = Buffer.from(JSON.stringify({ route }))
  return Buffer.concat([u32(line.length), line])
}

test('thousands of short exchanges leave nothing behind on either side', async () => {
  const seen = seenNothing()
  const { caller, streams } = await linkOf({ '/lines': () => ({ lines: manyLines(20, 10, seen) }) })
  const link = caller()
  const ask = async (): Promise<void> => {
    const reply = await link.exchange({ route: 'GET /lines' }, undefined, { lost })
    assert.equal((await textOf(reply.body)).length, 220)
  }
  for (let i = 0; i < 50; i++) await Promise.all(Array.from({ length: 64 }, ask))
  assert.deepEqual([link.size, streams.size, seen.pulled], [0, 0, 64_000])
  link.close()
})

test('frames of one turn leave in one write', async () => {
  const { near, caller } = await linkOf({})
  const link = caller()
  let writes = 0
  const write = near.write.bind(near)
  near.write = ((bytes: Buffer) => (writes++, write(bytes))) as typeof near.write
  const asked = Array.from({ length: 30 }, () => link.exchange({ route: 'GET /none' }, undefined, { lost }))
  assert.deepEqual(new Set((await Promise.all(asked)).map(({ status }) => status)), new Set([404]))
  assert.equal(writes, 1)
  link.close()
})

test('bytes that are no frames, or frames that may not come, end the link and nothing else', async () => {
  const hostile: Record<string, Buffer> = {
    garbage: Buffer.from('GET / HTTP/1.1\r\nhost: x\r\n\r\n'),
    'an oversized frame': frame(kinds.data, 1, Buffer.alloc(0), maxDataBytes + 1),
    'an oversized request': frame(kinds.open, 1, Buffer.alloc(0), maxOpenBytes * 2),
    'an unknown kind': frame(99, 1),
    'an exchange of nobody': frame(kinds.reset, 7, Buffer.of(1)),
    'a request line that is none': frame(kinds.open, 1, Buffer.concat([u32(2), Buffer.from('{}')])),
    'a request line that is cut': frame(kinds.open, 1, u32(100)),
    'an exchange that was begun before': Buffer.concat([
      frame(kinds.open, 2, opening('GET /hold')),
      frame(kinds.open, 2, opening('GET /hold')),
    ]),
  }
  for (const [what, bytes] of Object.entries(hostile)) {
    const seen = seenNothing()
    const { near, far, streams } = await linkOf({ '/hold': ({ signal }) => ({ lines: held(signal, seen) }) })
    near.write(bytes)
    await until(() => far.destroyed && streams.size === 0 && seen.holding === 0)
    assert.ok(far.destroyed, what)
  }
})

test('a server that sends more than was granted is cut off', async () => {
  const { near, far, caller } = await linkOf({})
  far.removeAllListeners('data')
  const link = caller()
  const reply = link.exchange({ route: 'GET /lines' }, undefined, { lost })
  far.write(frame(kinds.head, 1, Buffer.from('[200,{}]')))
  const { body } = await reply
  const part = frame(kinds.data, 1, Buffer.alloc(maxDataBytes))
  for (let sent = 0; sent <= initialCredit; sent += maxDataBytes) far.write(part)
  await until(() => near.destroyed)
  await assert.rejects(
    (async () => {
      for await (const _ of body);
    })(),
    /more was sent/,
  )
})

test('a peer that vanishes without a word is found out by either end', async () => {
  const times = { pingMs: 10, deadMs: 40 }
  const seen = seenNothing()
  const routes = { '/hold': ({ signal }: { signal: AbortSignal }) => ({ lines: held(signal, seen) }) }
  for (const watching of ['caller', 'server'] as const) {
    const { near, far, caller } = await linkOf(routes, watching === 'server' ? times : undefined)
    const link = caller(watching === 'caller' ? times : undefined)
    const { body } = await link.exchange({ route: 'GET /hold' }, undefined, { lost })
    assert.equal(String((await body.next()).value), 'first\n')
    // The cable is out: the other end hears nothing, and says nothing any more.
    const deaf = watching === 'caller' ? far : near
    deaf.removeAllListeners('data')
    if (watching === 'caller') await assert.rejects(body.next(), /silent/)
    await until(() => seen.ended.length === 1)
    assert.deepEqual(seen.ended.splice(0), ['client_gone'])
    link.close()
  }
})

test('an exchange that crosses the end of the link was not begun; those that run go on', async () => {
  const seen = seenNothing()
  const { caller, host, streams } = await linkOf({ '/hold': ({ signal }) => ({ lines: held(signal, seen) }) })
  const link = caller()
  const open = await link.exchange({ route: 'GET /hold' }, undefined, { lost })
  await open.body.next()
  const ended = host.end()
  await assert.rejects(link.exchange({ route: 'GET /hold' }, undefined, { lost }), { code: 'LINK_REFUSED' })
  assert.equal(link.open, false)
  const rest = textOf(open.body)
  await streams.end()
  assert.equal(await rest, 'shutdown\n')
  await ended
  assert.equal(seen.ended.length, 1)
})

test('a link that its server leaves carries what is open to its end, and is closed by the caller behind it', async () => {
  const seen = seenNothing()
  const routes = { '/hold': ({ signal }: { signal: AbortSignal }) => ({ lines: held(signal, seen) }) }
  const { caller, host, streams, near, far } = await linkOf(routes)
  const link = caller()
  const [first, second] = await Promise.all(
    [1, 2].map(() => link.exchange({ route: 'GET /hold' }, undefined, { lost })),
  )
  for (const { body } of [first!, second!]) assert.equal(String((await body.next()).value), 'first\n')
  host.leave()
  host.leave()
  // The caller has not heard of it yet: it begins one more, and does not want it any more.
  const unwanted = new AbortController()
  const crossing = link.exchange({ route: 'GET /hold' }, undefined, { lost, signal: unwanted.signal })
  unwanted.abort()
  await assert.rejects(crossing, /aborted/)
  await assert.rejects(link.exchange({ route: 'GET /hold' }, undefined, { lost }), { code: 'LINK_REFUSED' })
  await first!.body.return!()
  await until(() => streams.size === 1)
  assert.deepEqual([link.open, link.takes(0), link.gone], [false, false, false])
  const rest = textOf(second!.body)
  await streams.end()
  assert.equal(await rest, 'shutdown\n')
  await until(() => near.destroyed && far.destroyed)
  assert.deepEqual([link.gone, seen.ended], [true, ['cancelled', 'shutdown']])
  await host.end()
})

test('a link without an exchange is closed as soon as its server leaves it', async () => {
  const { caller, host, near, far } = await linkOf({})
  const link = caller()
  host.leave()
  await until(() => near.destroyed && far.destroyed)
  assert.equal(link.gone, true)
})

test('a frame may come in any pieces', async () => {
  const { near, far } = await linkOf({})
  const got: string[] = []
  far.removeAllListeners('data')
  let text = ''
  const connection = new Connection(far, Buffer.alloc(0), {
    frame: (kind, stream, payload) => {
      if (kind === kinds.data) text += payload.toString()
      else got.push(`${kind} ${stream} ${payload.toString()}`)
    },
    closed: () => undefined,
  })
  const bytes = Buffer.concat([
    frame(kinds.open, 1, Buffer.from('one')),
    frame(kinds.credit, 2),
    frame(kinds.data, 3, Buffer.from('x'.repeat(500))),
    frame(kinds.data, 3),
    frame(kinds.end, 3),
  ])
  for (const step of [1, 2, 7, 100, bytes.length]) {
    got.length = 0
    text = ''
    for (let at = 0; at < bytes.length; at += step) {
      near.write(bytes.subarray(at, at + step))
      await new Promise((resolve) => setImmediate(resolve))
    }
    await until(() => got.length === 3)
    assert.deepEqual(got, ['1 1 one', '6 2 ', `${kinds.end} 3 `])
    assert.equal(text, 'x'.repeat(500), 'data is given on as it comes')
  }
  connection.destroy(new Error('done'))
})

test('a link goes by the look-up of its peers: a name that leads where they may not ask is refused', async () => {
  const lookup = guardedLookup(
    (_host, callback) => callback(null, [{ address: '168.63.129.16', family: 4 }]),
    isNetworkAddress,
  )
  const target = { origin: 'http://runner.example:7060', prefix: '', headers: {}, timeoutMs: 1_000, lookup }
  await assert.rejects(connectLink(target), ForbiddenAddressError)
})
