import assert from 'node:assert/strict'
import { createSocket, type RemoteInfo } from 'node:dgram'
import { once } from 'node:events'
import { test, type TestContext } from 'node:test'
import { promisify } from 'node:util'
import { guardedLookup, isPublicAddress, publicResolve, systemResolve } from '../outbound.ts'

/** A name server that answers as it is told; undefined: with nothing, ever. */
async function startNameServer(
  t: TestContext,
  answer: (name: string, type: number) => Buffer[] | 'unknown' | undefined,
) {
  const socket = createSocket('udp4')
  const asked: string[] = []
  socket.on('message', (query: Buffer, { port, address }: RemoteInfo) => {
    const labels: string[] = []
    let at = 12
    for (let length = query[at]!; length > 0; length = query[at]!) {
      labels.push(query.toString('latin1', at + 1, at + 1 + length))
      at += length + 1
    }
    const type = query.readUInt16BE(at + 1)
    const question = query.subarray(12, at + 5)
    asked.push(labels.join('.'))
    const found = answer(labels.join('.'), type)
    if (found === undefined) return
    const records = found === 'unknown' ? [] : found
    const head = Buffer.from(query.subarray(0, 12))
    head.writeUInt16BE(found === 'unknown' ? 0x8183 : 0x8180, 2)
    head.writeUInt16BE(records.length, 6)
    head.fill(0, 8)
    // A pointer to the name that was asked for, the type, the class, a time to live.
    const answers = records.map((data) =>
      Buffer.concat([Buffer.from([0xc0, 12, 0, type, 0, 1, 0, 0, 0, 60, 0, data.length]), data]),
    )
    socket.send(Buffer.concat([head, question, ...answers]), port, address)
  })
  socket.bind(0, '127.0.0.1')
  await once(socket, 'listening')
  t.after(() => socket.close())
  return { asked, resolve: publicResolve([`127.0.0.1:${socket.address().port}`]) }
}

test('names that a hostile server gives no answer for hold up no other look-up', async (t) => {
  const hostile = await startNameServer(t, () => undefined)
  let answered = 0
  for (let i = 0; i < 16; i++) hostile.resolve(`x${i}.hostile.example`, () => answered++)
  const before = await promisify(systemResolve)('localhost')
  assert.ok(before.length > 0)
  assert.equal(answered, 0, 'they wait still')
  while (new Set(hostile.asked).size < 16) await new Promise(setImmediate)
})

test('names are found with all their addresses, of which only those are connected to that may be', async (t) => {
  const six = Buffer.from('20010db8000000000000000000000001', 'hex')
  const { resolve } = await startNameServer(t, (name, type) => {
    if (name === 'both.example') return [type === 1 ? Buffer.from([93, 184, 216, 34]) : six]
    if (name === 'inside.example') return type === 1 ? [Buffer.from([10, 0, 0, 7])] : []
    return 'unknown'
  })
  const ask = promisify(resolve)
  assert.deepEqual(await ask('both.example'), [
    { address: '93.184.216.34', family: 4 },
    { address: '2001:db8::1', family: 6 },
  ])
  assert.deepEqual(await ask('127.0.0.1'), [{ address: '127.0.0.1', family: 4 }])
  await assert.rejects(ask('nobody.example'), { code: 'ENOTFOUND' })
  const lookup = (host: string): Promise<unknown> =>
    new Promise((done, fail) =>
      guardedLookup(resolve, isPublicAddress)(host, { all: false }, (error, address) =>
        error ? fail(error) : done(address),
      ),
    )
  assert.equal(await lookup('both.example'), '93.184.216.34')
  for (const host of ['inside.example', 'localhost', 'a.localhost'])
    await assert.rejects(lookup(host), { name: 'ForbiddenAddressError' }, host)
})
