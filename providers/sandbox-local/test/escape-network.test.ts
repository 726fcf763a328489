import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer as createHttpServer } from 'node:http'
import { type AddressInfo, createServer, type Server } from 'node:net'
import { networkInterfaces, tmpdir } from 'node:os'
import { join } from 'node:path'
import { randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { openInside } from './bubblewrap.ts'

/** A server of the host, and how many have reached it. */
async function hostServer(t: TestContext, ...where: [number, string] | [string]) {
  let reached = 0
  const server: Server = createServer((socket) => {
    reached++
    socket.destroy()
  })
  server.listen(...(where as [number, string]))
  await once(server, 'listening')
  t.after(() => server.close())
  return { port: (server.address() as AddressInfo).port, reached: () => reached }
}

/** Tries to connect from inside, and says to what it could: `[host, port]`, or the path of a socket. */
const attempts = (targets: readonly unknown[]): string => `
  import { connect } from 'node:net'
  const tried = await Promise.all(${JSON.stringify(targets)}.map((target) => new Promise((done) => {
    const socket = Array.isArray(target) ? connect(target[1], target[0]) : connect(target)
    socket.setTimeout(3000, () => { socket.destroy(); done('timeout') })
    socket.once('connect', () => { socket.destroy(); done('connected') })
    socket.once('error', (error) => done(error.code))
  })))
  console.log(JSON.stringify(tried))`

test('no port of the host answers, nor any other address', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  // As PostgreSQL, Redis and the runner's own listener would be: on the loopback of the host, and on all of its addresses.
  const loopback = await hostServer(t, 0, '127.0.0.1')
  const everywhere = await hostServer(t, 0, '0.0.0.0')
  const addresses = Object.values(networkInterfaces()).flatMap((list) => list!.map(({ address }) => address))
  const targets = [
    ['127.0.0.1', loopback.port],
    ['localhost', loopback.port],
    ['127.0.0.1', 5432],
    ['127.0.0.1', 6379],
    ...addresses.map((address) => [address, everywhere.port]),
    ['169.254.169.254', 80],
    ['10.0.0.1', 80],
    ['1.1.1.1', 53],
    ['::1', everywhere.port],
  ]
  const tried = (await inside.node(attempts(targets))) as string[]
  // EINVAL: a link-local address of an interface that is not there.
  const refused = new Set(['ECONNREFUSED', 'ENETUNREACH', 'EADDRNOTAVAIL', 'EHOSTUNREACH', 'EINVAL'])
  assert.ok(
    tried.every((outcome) => refused.has(outcome)),
    JSON.stringify(tried),
  )
  assert.equal(loopback.reached() + everywhere.reached(), 0)
  assert.deepEqual(await inside.node(attempts([['127.0.0.1', 7060]])), ['connected'], 'the one port that there is')
})

test('sockets of the host are not there, neither by path nor by an abstract name', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  const name = `ao-escape-${randomBytes(6).toString('hex')}`
  const path = join(tmpdir(), name)
  const byPath = await hostServer(t, path)
  const abstract = await hostServer(t, `\0${name}`)
  const known = ['/run/postgresql/.s.PGSQL.5432', '/var/run/docker.sock', '/run/dbus/system_bus_socket']
  const tried = await inside.node(attempts([path, `\0${name}`, ...known]))
  assert.deepEqual(tried, ['ENOENT', 'ECONNREFUSED', 'ENOENT', 'ENOENT', 'ENOENT'])
  assert.equal(byPath.reached() + abstract.reached(), 0)
})

test('no name is resolved', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  const script = `
    import { lookup, resolve4 } from 'node:dns/promises'
    const code = (promise) => promise.then(() => 'resolved', (error) => error.code)
    console.log(JSON.stringify([await code(lookup('example.com')), await code(resolve4('example.com'))]))`
  assert.deepEqual(await inside.node(script), ['ENOTFOUND', 'ECONNREFUSED'])
})

test('there is one interface, and no address family that reaches further', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  assert.deepEqual(
    await inside.node(
      "import { networkInterfaces } from 'node:os'\nconsole.log(JSON.stringify(Object.keys(networkInterfaces())))",
    ),
    ['lo'],
  )
  // No network namespace holds AF_VSOCK (40) back: it would reach the hypervisor. 17: packets, 38: the kernel's ciphers.
  const { stdout } = await inside.perl(
    'for (40, 17, 38, 31, 44) { print socket(my $s, $_, 1, 0) ? "open" : $!+0, " " } print socket(my $s, 2, 3, 1) ? "raw" : $!+0',
  )
  const refused = { EAFNOSUPPORT: 97, EPERM: 1 }
  assert.equal(stdout, `${`${refused.EAFNOSUPPORT} `.repeat(5)}${refused.EPERM}`)
  assert.equal((await inside.perl('print socketpair(my $a, my $b, 40, 1, 0) ? "open" : $!+0')).stdout, '97')
})

test('the relay leads to the listener for workers, whatever is said to it', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  const secret = createHttpServer((_request, response) => response.end('of the runner alone')).listen(0, '127.0.0.1')
  await once(secret, 'listening')
  t.after(() => secret.close())
  const elsewhere = `127.0.0.1:${(secret.address() as AddressInfo).port}`
  const requests = [
    `GET http://${elsewhere}/ HTTP/1.1\r\nhost: ${elsewhere}\r\nconnection: close\r\n\r\n`,
    `CONNECT ${elsewhere} HTTP/1.1\r\nhost: ${elsewhere}\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n`,
    `PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n`,
  ]
  const said = await inside.node(`
    import { connect } from 'node:net'
    const answers = await Promise.all(${JSON.stringify(requests)}.map((text) => new Promise((done) => {
      let answer = ''
      const socket = connect(7060, '127.0.0.1')
      socket.setTimeout(3000, () => socket.destroy())
      socket.on('data', (chunk) => { answer += chunk })
      socket.on('error', () => {})
      socket.on('close', () => done(answer))
      socket.end(text)
    })))
    console.log(JSON.stringify(answers))`)
  assert.doesNotMatch(JSON.stringify(said), /of the runner alone/)
})

test('connections without end are bounded, and others do not notice', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  const other = await inside.launches.start()
  const open = (await inside.node(`
    import { connect } from 'node:net'
    const sockets = Array.from({ length: 400 }, () => connect(7060, '127.0.0.1'))
    let ended = 0
    for (const socket of sockets) socket.on('error', () => {}).on('close', () => { ended++ })
    // Those beyond the bound are closed at once; the queue of the socket holds 511, so none is lost before.
    while (ended < 400 - 256) await new Promise((done) => setTimeout(done, 10))
    console.log(JSON.stringify(400 - ended))
    process.exit()`)) as number
  assert.ok(open <= 256, `${open} connections`)
  await other.session.polled(undefined, 5)
})
