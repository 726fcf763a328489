import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type ClientRequest, type IncomingMessage, request as httpRequest } from 'node:http'
import { test } from 'node:test'
import { overLimit } from '#contracts/limits'
import { workerProtocolHeader } from '#contracts/wire/sidecar'
import { workerPaths, workerProtocol } from '#contracts/wire/worker'
import { begin, startHub, until } from './hub.ts'

const connected = () => AbortSignal.timeout(60_000)
const bundle = (text: string) => ({ bytes: Buffer.from(text), contentType: 'application/json', runtimeSessionId: text })

test("a worker finds the runner's copy at its start, and the runner keeps what it uploads", async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const url = urls['workers']! + workerPaths(channel.sessionId).state
  const authorization = `Bearer ${channel.token}`
  const read = () => fetch(url, { headers: { authorization } })
  assert.equal((await read()).status, 404)
  channel.setState(bundle('first'))
  const found = await read()
  assert.equal(found.status, 200)
  assert.equal(await found.text(), 'first')
  assert.equal(found.headers.get('content-type'), 'application/json')
  assert.equal(found.headers.get('x-runtime-session-id'), 'first')
  const rev = Number(found.headers.get('x-agent-orc-state-rev'))
  const put = (text: string, at: number) =>
    fetch(url, {
      method: 'PUT',
      body: text,
      headers: { authorization, 'content-type': 'application/gzip', 'x-agent-orc-state-rev': String(at) },
    })
  assert.equal((await put('second', rev + 1)).status, 204)
  assert.deepEqual(channel.state, { bytes: Buffer.from('second'), contentType: 'application/gzip' })
  // After a lost answer the worker uploads the copy again. An older copy changes nothing.
  assert.equal((await put('second again', rev + 1)).status, 204)
  assert.equal((await put('older', rev)).status, 204)
  assert.equal(Buffer.from(channel.state!.bytes).toString(), 'second again')
  // A worker that could not restore the state has none. Its deletion changes nothing either.
  assert.equal((await fetch(url, { method: 'DELETE', headers: { authorization } })).status, 204)
  assert.ok(channel.state)
  const newest = { authorization, 'x-agent-orc-state-rev': String(rev + 2) }
  assert.equal((await fetch(url, { method: 'DELETE', headers: newest })).status, 204)
  assert.equal(channel.state, undefined)
})

test('what the runner says of a state wins over what a former worker has on its disk', async (t) => {
  const { open, hub, urls } = await startHub(t)
  const { channel, worker } = await open()
  let rev = 0
  const state = () => (rev === 0 ? undefined : bundle('from the disk'))
  const polling = worker({ state })
  await channel.connected(connected())
  rev = 1
  assert.equal(Buffer.from((await channel.exportState())!.bytes).toString(), 'from the disk')
  const next = await hub.open('acme', channel.sessionId)
  next.setState(bundle('from the conductor'))
  const found = await fetch(urls['workers']! + workerPaths(channel.sessionId).state, {
    headers: { authorization: `Bearer ${next.token}` },
  })
  assert.ok(Number(found.headers.get('x-agent-orc-state-rev')) > polling.stateRev)
})

test('an export asks the worker, and falls back on the copy that is here', async (t) => {
  const { open } = await startHub(t)
  const { channel, worker } = await open()
  channel.setState(bundle('durable'))
  // The worker does not poll.
  assert.deepEqual(await channel.exportState(), bundle('durable'))
  let has = false
  const polling = worker({ state: () => (has ? { ...bundle('fresh') } : undefined) })
  await channel.connected(connected())
  assert.deepEqual(await channel.exportState(), bundle('durable'))
  has = true
  // This worker never read the runner's copy, so it counts from one, and its copy counts as older.
  assert.deepEqual(await channel.exportState(), bundle('durable'))
  const asked = channel.exportState()
  polling.stop()
  channel.close()
  assert.deepEqual(await asked, bundle('durable'))
})

test('a state larger than 64 MiB is refused, with or without its length', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const block = Buffer.alloc(1024 * 1024)
  for (const length of [{ 'content-length': String(64 * block.length + 1) }, {}]) {
    const status = await new Promise<number | undefined>((resolve, reject) => {
      const request = httpRequest(urls['workers']! + workerPaths(channel.sessionId).state, {
        method: 'PUT',
        headers: { authorization: `Bearer ${channel.token}`, 'x-agent-orc-state-rev': '1', ...length },
      })
      let written = 0
      request
        .on('error', reject)
        .on('response', (response) => {
          resolve(response.statusCode)
          request.on('error', () => {}).destroy()
        })
        .on('drain', () => void (written++ < 65 && request.write(block)))
      request.write(block)
    })
    assert.equal(status, 413)
  }
  assert.equal(channel.state, undefined)
})

test('of the bundles that a worker sends at once only the newest is held', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const url = urls['workers']! + workerPaths(channel.sessionId).state
  const upload = (rev: number) => {
    const headers = {
      authorization: `Bearer ${channel.token}`,
      'content-type': 'application/gzip',
      'x-agent-orc-state-rev': String(rev),
    }
    const request = httpRequest(url, { method: 'PUT', headers })
    t.after(() => request.destroy())
    request.write('half of it, ')
    return request
  }
  const ends = (request: ClientRequest) => once(request, 'response').then(() => 'answered', String)
  const first = upload(1)
  const firstEnds = ends(first)
  await new Promise<void>((sent) => first.write('and more', () => sent()))
  const second = upload(2)
  assert.match(await firstEnds, /ECONNRESET|hang up/)
  const secondEnds = ends(second)
  second.end('the rest')
  assert.equal(await secondEnds, 'answered')
  assert.equal(Buffer.from(channel.state!.bytes).toString(), 'half of it, the rest')
})

test('a worker that reads its answers slowly holds one of a kind', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const large = 'x'.repeat(32 * 1024 * 1024)
  channel.setState({ bytes: Buffer.from(large), contentType: 'application/gzip' })
  begin(channel, { prompt: large })
    .next()
    .catch(() => {})
  const paths = workerPaths(channel.sessionId)
  for (const path of [paths.state, `${paths.poll}?wait=0`]) {
    const unread = async (): Promise<IncomingMessage> => {
      const headers = { authorization: `Bearer ${channel.token}`, [workerProtocolHeader]: workerProtocol }
      const request = httpRequest(urls['workers']! + path, { headers, agent: false }).end()
      t.after(() => request.destroy())
      const [response] = (await once(request, 'response')) as [IncomingMessage]
      assert.equal(response.statusCode, 200)
      return response
    }
    const [first, second] = [await unread(), await unread()]
    await assert.rejects(first.toArray(), /aborted/)
    assert.ok(Buffer.concat(await second.toArray()).length >= large.length)
  }
})

test('a copy for which there is no room is refused by the name of the limit, and no older one stands in for it', async (t) => {
  const memory = new Map<string, number>()
  const most = 10
  const { open, urls } = await startHub(t, {
    memory: {
      hold(_tenantId, sessionId, bytes) {
        if (bytes > most) throw overLimit('stateBytes', most)
        memory.set(sessionId, bytes)
      },
    },
  })
  const { channel, worker } = await open()
  const id = channel.sessionId
  const url = urls['workers']! + workerPaths(id).state
  const put = (text: string, rev: number) =>
    fetch(url, {
      method: 'PUT',
      body: text,
      headers: { authorization: `Bearer ${channel.token}`, 'x-agent-orc-state-rev': String(rev) },
    })
  assert.equal((await put('eight...', 1)).status, 204)
  await until(() => memory.get(id) === 8, 'it is counted')
  assert.equal((await put('nine.....', 2)).status, 204, 'in the place of the copy that is here')
  await until(() => memory.get(id) === 9, 'the newest counts')
  const refused = await put('eleven.....', 3)
  const { error, limit, max } = (await refused.json()) as Record<string, unknown>
  assert.deepEqual([refused.status, error, limit, max], [429, 'limit_reached', 'stateBytes', most])
  await until(() => memory.get(id) === 0, 'nothing is here')
  assert.equal(channel.state, undefined)
  assert.equal(channel.stateRefused?.code, 'limit_reached')
  const unsized = httpRequest(url, {
    method: 'PUT',
    headers: { authorization: `Bearer ${channel.token}`, 'x-agent-orc-state-rev': '4' },
  })
  unsized.write('x')
  const [answered] = (await once(unsized, 'response')) as [IncomingMessage]
  assert.equal(answered.statusCode, 429, 'one that does not say how large it is')
  unsized.on('error', () => {}).destroy()
  assert.equal((await put('fits', 5)).status, 204)
  assert.equal(channel.stateRefused, undefined)
  assert.equal(Buffer.from(channel.state!.bytes).toString(), 'fits')
  // The runner does not wait for a worker whose upload it has refused.
  worker({ state: () => bundle('much too long') })
  await channel.connected(connected())
  await assert.rejects(channel.exportState(), { code: 'limit_reached' })
})
