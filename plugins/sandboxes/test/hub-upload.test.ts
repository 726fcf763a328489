// This file runs in a process of its own, because it measures the memory of its process.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type ClientRequest, createServer, request as httpRequest } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { workerPaths } from '#contracts/wire/worker'
import type { WorkerChannel } from '../hub/worker.ts'
import { begin, startHub } from './hub.ts'
import { receive, type Upload } from '../hub/upload.ts'

const mebi = 1024 * 1024
/** 64 KiB of whole lines. */
const block = Buffer.from(`${'x'.repeat(1_023)}\n`.repeat(64))

/** An upload that the test writes by itself; without a Content-Length unless given. */
function uploadTo(url: string, channel: WorkerChannel, headers: Record<string, string> = {}) {
  const request = httpRequest(`${url}${workerPaths(channel.sessionId).events}?runId=run-1`, {
    method: 'POST',
    headers: { authorization: `Bearer ${channel.token}`, 'content-type': 'application/x-ndjson', ...headers },
  })
  const answer = new Promise<{ status: number; error: string }>((resolve, reject) => {
    request.on('error', reject).on('response', async (response) => {
      const parts: Buffer[] = []
      for await (const part of response) parts.push(part as Buffer)
      const body = Buffer.concat(parts).toString()
      resolve({ status: response.statusCode!, error: body && (JSON.parse(body) as { error: string }).error })
    })
  })
  answer.catch(() => {})
  return { request, answer }
}

/** Writes until there are so many bytes, or an answer; waits for a socket that is full. */
async function write(request: ClientRequest, bytes: number, answer: Promise<unknown>): Promise<number> {
  let written = 0
  let answered = false
  const over = answer.then(
    () => (answered = true),
    () => (answered = true),
  )
  while (written < bytes && !answered) {
    written += block.length
    if (!request.write(block)) await Promise.race([once(request, 'drain'), over])
  }
  return written
}

/** Counts what a run yields until it ends, and how. */
async function drain(chunks: AsyncIterator<Buffer>): Promise<{ bytes: number; failure: unknown }> {
  let bytes = 0
  try {
    for (let read = await chunks.next(); !read.done; read = await chunks.next()) bytes += read.value.length
    return { bytes, failure: undefined }
  } catch (failure) {
    return { bytes, failure }
  }
}

test('an upload that grows beyond 256 MiB without saying so is refused on its way', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const run = drain(begin(channel, { runId: 'run-1' }))
  const { request, answer } = uploadTo(urls['workers']!, channel)
  const written = await write(request, 400 * mebi, answer)
  assert.deepEqual(await answer, { status: 413, error: 'event_upload_too_large' })
  request.destroy()
  const { bytes, failure } = await run
  assert.equal((failure as { code: string }).code, 'event_upload_too_large')
  assert.ok(bytes > 255 * mebi && bytes <= 256 * mebi, `${bytes}`)
  assert.ok(written < 400 * mebi)
})

test('an upload takes no memory for its size', async (t) => {
  // What is alive is looked at after a collection: how much garbage there is meanwhile, and so the resident set, is
  // the collector's own choice.
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  const alive = (): number => {
    collect()
    collect() // The memory of buffers is given back by a thread beside; the next collection waits for it.
    return process.memoryUsage().arrayBuffers
  }
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const before = alive()
  const chunks = begin(channel, { runId: 'run-1' })
  const { request, answer } = uploadTo(urls['workers']!, channel)
  const whole = 200 * mebi
  const writing = write(request, whole, answer).then(() => request.end())
  let bytes = 0
  let most = 0
  for (let read = await chunks.next(); !read.done; read = await chunks.next()) {
    const looks = Math.floor(bytes / (20 * mebi))
    bytes += read.value.length
    if (Math.floor(bytes / (20 * mebi)) > looks) most = Math.max(most, alive() - before)
  }
  await writing
  assert.equal(bytes, whole)
  assert.equal((await answer).status, 204)
  t.diagnostic(`at most ${(most / mebi).toFixed(1)} MiB were alive`)
  assert.ok(most < 8 * mebi, `${most} bytes of the upload were in memory at once`)
})

test('an upload that says it is larger than 256 MiB is refused before anything of it is read', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const run = drain(begin(channel, { runId: 'run-1' }))
  const { request, answer } = uploadTo(urls['workers']!, channel, { 'content-length': String(256 * mebi + 1) })
  request.write(block)
  assert.deepEqual(await answer, { status: 413, error: 'event_upload_too_large' })
  request.destroy()
  const { bytes, failure } = await run
  assert.equal(bytes, 0)
  assert.equal((failure as { code: string }).code, 'event_upload_too_large')
})

test('what a slow reader does not take stays with the worker', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const chunks = begin(channel, { runId: 'run-1' })
  const { request, answer } = uploadTo(urls['workers']!, channel)
  request.write(block)
  const first = await chunks.next()
  const whole = 64 * mebi
  const writing = write(request, whole, answer).then(() => request.end())
  // It writes until the socket takes nothing more.
  const sent = (): number => request.socket!.bytesWritten
  for (let still = 0, last = -1; still < 10; last = sent()) {
    still = sent() === last ? still + 1 : 0
    await sleep(20)
  }
  assert.ok(sent() < 32 * mebi, `${sent()} bytes were taken from the worker`)
  const { bytes, failure } = await drain(chunks)
  await writing
  assert.equal(failure, undefined)
  assert.equal(bytes + (first.value as Buffer).length, whole + block.length)
  assert.equal((await answer).status, 204)
})

test('a line that is too long ends the run, and a torn last one is left out', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const endless = drain(begin(channel, { runId: 'run-1' }))
  const first = uploadTo(urls['workers']!, channel)
  first.request.write('x'.repeat(5 * mebi))
  assert.deepEqual(await first.answer, { status: 400, error: 'invalid_events' })
  first.request.destroy()
  assert.equal(((await endless).failure as Error).name, 'OversizedLineError')
  const torn = drain(begin(channel, { runId: 'run-1' }))
  const second = uploadTo(urls['workers']!, channel)
  second.request.end('whole\nto')
  assert.equal((await second.answer).status, 204)
  assert.deepEqual(await torn, { bytes: 6, failure: undefined })
})

/** One upload at a bare server, with limits that a test can reach. */
async function received(t: TestContext, limits: { maxBytes: number; maxMs: number }) {
  const arrived = Promise.withResolvers<Upload>()
  const server = createServer((request, response) => {
    const upload = receive(request, limits, () => {})
    arrived.resolve(upload)
    upload.done.then(
      () => response.writeHead(204).end(),
      (error: { status: number }) => response.writeHead(error.status).end(),
    )
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  const request = httpRequest({ port: (server.address() as AddressInfo).port, host: '127.0.0.1', method: 'POST' })
  const status = new Promise<number>((resolve, reject) => {
    request.on('error', reject).on('response', (response) => {
      response.resume()
      resolve(response.statusCode!)
    })
  })
  status.catch(() => {})
  request.write('one\n')
  return { upload: await arrived.promise, request, status }
}

test('an upload that takes too long is ended, read or not', async (t) => {
  for (const read of [true, false]) {
    const { upload, request, status } = await received(t, { maxBytes: mebi, maxMs: 100 })
    const lines = upload.lines()[Symbol.asyncIterator]()
    if (read) assert.equal(String((await lines.next()).value), 'one\n')
    assert.equal(await status, 408)
    await assert.rejects(
      async () => {
        while (!(await lines.next()).done);
      },
      { code: 'event_upload_timeout', status: 408 },
    )
    request.destroy()
  }
})

test('a connection that is cut ends its upload, read or not', async (t) => {
  for (const read of [true, false]) {
    const { upload, request } = await received(t, { maxBytes: mebi, maxMs: 60_000 })
    const lines = upload.lines()[Symbol.asyncIterator]()
    if (read) await lines.next()
    request.destroy()
    await assert.rejects(upload.done, { code: 'sidecar_lost', retryable: true })
    await assert.rejects(
      async () => {
        while (!(await lines.next()).done);
      },
      { code: 'sidecar_lost' },
    )
  }
})
