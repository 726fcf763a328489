import assert from 'node:assert/strict'
import { X509Certificate } from 'node:crypto'
import { cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { once } from 'node:events'
import type { IncomingMessage } from 'node:http'
import { Agent, request } from 'node:https'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { connect as connectTls, type Server, type TLSSocket } from 'node:tls'
import { setTimeout as sleep } from 'node:timers/promises'
import { pino } from 'pino'
import { access, AppError, type ListenerConfig } from '#kernel'
import { acceptLinks, createPeers, trusted } from '#kit'
import { createListener } from '../../http/listener.ts'
import { createCompilers } from '../compilers.ts'
import { linkHeader, linkPath, linkProtocol, linkVersion } from '../link/connection.ts'
import { followTls, LiveTls } from '../tls.ts'

const fixture = (name: string): URL => new URL(`../../../test/certificates/${name}`, import.meta.url)
const pem = (name: string): Promise<string> => readFile(fixture(name), 'utf8')
const fingerprints = async () => ({
  first: new X509Certificate(await pem('server.pem')).fingerprint256,
  second: new X509Certificate(await pem('client.pem')).fingerprint256,
})

/** A certificate with its key in a folder, and how to renew them there. */
async function files(t: TestContext) {
  const folder = await mkdtemp(join(tmpdir(), 'agent-orc-tls-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  const given = { cert: join(folder, 'tls.pem'), key: join(folder, 'tls.key'), ca: join(folder, 'ca.pem') }
  const put = async (name: keyof typeof given, from: string): Promise<void> => cp(fixture(from), given[name])
  await put('cert', 'server.pem')
  await put('key', 'server.key')
  await put('ca', 'ca.pem')
  const warnings: string[] = []
  const log = { info() {}, warn: (_fields: object, message: string) => void warnings.push(message) }
  return { given, put, log, warnings }
}

/** The URL of a listener with these certificates. */
const listening = async (t: TestContext, tls: LiveTls, requestClientCert = false): Promise<string> =>
  (await listener(t, tls, requestClientCert)).url

/** A listener on a real port with these certificates. `slow`: ends the request of `/slow`, once it has begun. */
async function listener(t: TestContext, tls: LiveTls, requestClientCert = false) {
  const config: ListenerConfig = {
    host: '127.0.0.1',
    port: 0,
    hosts: ['127.0.0.1'],
    origins: [],
    tls: { requestClientCert },
  }
  const options = {
    compilers: createCompilers(),
    log: pino({ level: 'silent' }),
    logRequests: false,
    errors: [],
    guarded: false,
    tls,
  }
  const { app, listen } = await createListener('runner', config, options)
  app.get('/word', access('network'), async () => 'word')
  app.get('/known', access('network'), async (_request, reply) => reply.code(204).send())
  const slow = Promise.withResolvers<() => void>()
  app.get('/slow', access('network'), () => new Promise((resolve) => slow.resolve(() => resolve('slow'))))
  t.after(() => app.close())
  await app.ready()
  return { app, url: await listen(), slow: slow.promise }
}

/** The status of an answer, and the certificate that came with it. */
function ask(url: string, options: object): Promise<{ status: number; certificate: string }> {
  return new Promise((resolve, reject) => {
    const asking = request(`${url}/word`, options, (reply) => {
      const certificate = (reply.socket as TLSSocket).getPeerCertificate().fingerprint256
      reply.resume().once('end', () => resolve({ status: reply.statusCode!, certificate }))
    })
    asking.once('error', reject).end()
  })
}

test('a renewed certificate is served to new connections, and no request fails meanwhile', async (t) => {
  const { given, put, log } = await files(t)
  const tls = followTls(given, log)!
  const url = await listening(t, tls)
  const ca = await pem('ca.pem')
  const { first, second } = await fingerprints()
  const kept = new Agent({ keepAlive: true, maxSockets: 1 })
  t.after(() => kept.destroy())
  const seen: string[] = []
  const failed: unknown[] = []
  let over = false
  const callers = Array.from({ length: 4 }, async (_, i) => {
    while (!over) {
      const answer = await ask(url, { ca, agent: i === 0 ? kept : false }).catch((error: unknown) => error as Error)
      if (answer instanceof Error || answer.status !== 200) failed.push(answer)
      else if (i > 0) seen.push(answer.certificate)
      else assert.equal(answer.certificate, first, 'a connection that stands keeps its certificate')
    }
  })
  const until = async (certificate: string): Promise<void> => {
    while (seen.at(-1) !== certificate && failed.length === 0) await sleep(1)
  }
  await until(first)
  await put('cert', 'client.pem')
  await tls.look()
  await put('key', 'client.key')
  await tls.look()
  await until(second)
  over = true
  await Promise.all(callers)
  assert.deepEqual(failed, [])
  assert.equal((await ask(url, { ca, agent: false })).certificate, second)
})

test('what is no HTTP is refused over TLS with the headers of every answer', async (t) => {
  const { given, log } = await files(t)
  const url = new URL(await listening(t, followTls(given, log)!))
  const socket = connectTls({ host: '127.0.0.1', port: Number(url.port), rejectUnauthorized: false })
  socket.end('no http\r\n\r\n')
  const answer = await text(socket)
  assert.match(answer, /^HTTP\/1\.1 400 Bad Request\r\n/)
  for (const header of [
    'cache-control: no-store',
    'strict-transport-security: max-age=31536000',
    'x-content-type-options: nosniff',
  ])
    assert.ok(answer.includes(`\r\n${header}\r\n`), answer)
})

test('a listener that closes answers what is under way, and waits for no handshake', async (t) => {
  const { given, log } = await files(t)
  const { app, url, slow } = await listener(t, followTls(given, log)!)
  const silent = connect(Number(new URL(url).port), '127.0.0.1')
  await once(silent, 'connect')
  const asked = request(`${url}/slow`, { ca: await pem('ca.pem') }).end()
  const answered = once(asked, 'response')
  const answer = await slow
  const gone = once(silent.resume(), 'close')
  const closed = app.close()
  await gone
  answer()
  const [reply] = (await answered) as [IncomingMessage]
  assert.equal(reply.statusCode, 200)
  await Promise.all([closed, once(reply.resume(), 'end')])
})

test('files that cannot be used leave what is served as it is, are said once, and are taken when they can', async (t) => {
  const { given, put, log, warnings } = await files(t)
  const tls = followTls(given, log)!
  const url = await listening(t, tls)
  const ca = await pem('ca.pem')
  const { first, second } = await fingerprints()
  const served = async (): Promise<string> => (await ask(url, { ca, agent: false })).certificate
  await writeFile(given.cert, '')
  await tls.look()
  assert.equal(await served(), first, 'a file that is just being written')
  const broken: (() => Promise<void>)[] = [
    () => writeFile(given.cert, 'nonsense'),
    () => rm(given.cert),
    () => put('cert', 'client.pem'),
    () => put('cert', 'server.pem').then(() => writeFile(given.ca, '-----BEGIN CERTIFICATE-----\nAA\n-----END')),
  ]
  for (const [i, breaks] of broken.entries()) {
    await breaks()
    await tls.look()
    await tls.look()
    assert.deepEqual([await served(), warnings.length], [first, i + 1])
  }
  await put('ca', 'ca.pem')
  await put('cert', 'client.pem')
  await put('key', 'client.key')
  await tls.look()
  assert.deepEqual([await served(), warnings.length], [second, broken.length])
})

/** One request, over a connection of its own. */
async function visit(url: string, options: object) {
  const asking = request(url, { agent: false, ...options })
  let session: Buffer | undefined
  asking.once('socket', (socket) => socket.on('session', (ticket: Buffer) => (session = ticket)))
  const answered = Promise.race([once(asking, 'response'), once(asking, 'upgrade')])
  asking.end()
  const [reply] = (await answered) as [IncomingMessage]
  const { statusCode, socket } = reply
  const resumed = (socket as TLSSocket).isSessionReused()
  socket.destroy()
  return { answer: [statusCode, resumed], session: session! }
}

for (const version of ['TLSv1.2', 'TLSv1.3'] as const) {
  test(`${version}: a session that is resumed proves no more than it began with, for requests and for links`, async (t) => {
    const { given, log } = await files(t)
    const { app, url } = await listener(t, followTls(given, log)!, true)
    acceptLinks(app, trusted)
    // What some versions of Node say of a session without a certificate.
    const server = app.server as unknown as Server
    server.prependListener('secureConnection', (socket) => {
      if (socket.isSessionReused() && !socket.getPeerX509Certificate()) socket.authorized = true
    })
    const upgrade = { connection: 'Upgrade', upgrade: linkProtocol, [linkHeader]: linkVersion }
    const shown = async (name: string) => ({ cert: await pem(`${name}.pem`), key: await pem(`${name}.key`) })
    for (const [certificate, word, link] of [
      [{}, 401, 401],
      [await shown('stranger'), 401, 401],
      [await shown('client'), 200, 101],
    ] as const) {
      const options = { ca: await pem('ca.pem'), minVersion: version, maxVersion: version, ...certificate }
      const { answer, session } = await visit(`${url}/word`, options)
      assert.deepEqual(answer, [word, false])
      const again = { ...options, session }
      assert.deepEqual((await visit(`${url}/word`, again)).answer, [word, true])
      assert.deepEqual((await visit(url + linkPath, { ...again, headers: upgrade })).answer, [link, true])
    }
  })
}

test('who is trusted follows its file, too', async (t) => {
  const { given, put, log } = await files(t)
  const tls = followTls(given, log)!
  const url = await listening(t, tls, true)
  const ca = await pem('ca.pem')
  const statusOf = async (name: string): Promise<number> =>
    (await ask(url, { ca, agent: false, cert: await pem(`${name}.pem`), key: await pem(`${name}.key`) })).status
  assert.deepEqual([await statusOf('client'), await statusOf('stranger')], [200, 401])
  await put('ca', 'stranger.pem')
  await tls.look()
  assert.deepEqual([await statusOf('client'), await statusOf('stranger')], [401, 200])
})

test('who calls shows its renewed certificate at once, also where the old one was refused', async (t) => {
  const server = await files(t)
  const url = await listening(t, followTls(server.given, server.log)!, true)
  const { given, put, log } = await files(t)
  await put('cert', 'stranger.pem')
  await put('key', 'stranger.key')
  const tls = followTls(given, log)!
  const peers = createPeers({
    links: false,
    connectMs: 2_000,
    timeoutMs: 10_000,
    identity: { tenantHeader: 'x-tenant-id' },
    faults: { lost: () => new AppError('lost', 502), failed: () => new AppError('bad_answer', 502) },
    tls,
  })
  t.after(() => peers.close())
  const route = {
    access: 'network',
    tags: ['test'],
    summary: 'A test.',
    method: 'GET',
    path: '/known',
    reply: { status: 204 },
  } as const
  await assert.rejects(peers.at(url).ask(route, {}), { status: 401 })
  await put('cert', 'client.pem')
  await put('key', 'client.key')
  await tls.look()
  assert.equal(await peers.at(url).ask(route, {}), true)
})

test('files are looked at by themselves, and PEM in a setting never', async (t) => {
  const { given, put, log } = await files(t)
  const read = { cert: await pem('server.pem'), key: await pem('server.key') }
  const tls = new LiveTls({ cert: given.cert, key: given.key }, read, log, 5)
  t.after(() => tls.close())
  const changed = new Promise<string | undefined>((resolve) => tls.onChange(({ cert }) => resolve(cert)))
  // While it is written a file may be read in part, and a certificate without its key.
  await put('cert', 'client.pem')
  await put('key', 'client.key')
  assert.equal(await changed, await pem('client.pem'))
  assert.deepEqual(followTls(read, log)!.files, read)
  assert.equal(followTls({}, log), undefined)
  assert.throws(() => followTls({ cert: read.cert }, log), /both/)
  assert.throws(
    () => followTls({ ...given, key: '/no/such.key' }, log),
    /tls\.key: \/no\/such\.key cannot be read \(ENOENT\)/,
  )
})
