import assert from 'node:assert/strict'
import { type ClientRequest, request as httpRequest } from 'node:http'
import { test, type TestContext } from 'node:test'
import Fastify from 'fastify'
import { access } from '#kernel'
import { WebGuard } from '../../kit/web-guard.ts'
import { errorAnswers, handleClientError } from '../errors.ts'
import { requestArrival } from '../requests.ts'
import { openStreams } from '../streams.ts'

/** A listener with uploads and another route. */
async function listener(t: TestContext, limitMs: number) {
  const app = Fastify({ requestTimeout: limitMs, clientErrorHandler: handleClientError })
  await app
    .register(errorAnswers)
    .register(openStreams)
    .register(requestArrival, { leaving: new AbortController().signal, guard: new WebGuard({ host: '0.0.0.0' }) })
  app.addHook('onRequest', async (request, reply) => {
    if (request.headers.authorization === undefined && request.url === '/guarded') await reply.code(401).send()
  })
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (_request, body, done) => done(null, body))
  const read = async (request: { raw: AsyncIterable<Buffer> }) => {
    let text = ''
    for await (const part of request.raw) text += String(part)
    return text
  }
  app.post('/plain', { ...access('public') }, read)
  app.post('/upload', { ...access('public', { upload: true }) }, read)
  app.post('/guarded', { ...access('public', { upload: true }) }, read)
  await app.listen({ port: 0, host: '127.0.0.1' })
  t.after(() => app.close())
  const { port } = app.server.address() as { port: number }
  return (path: string): { request: ClientRequest; answer: Promise<string> } => {
    const request = httpRequest({ host: '127.0.0.1', port, path, method: 'POST' })
    const answer = new Promise<string>((resolve, reject) => {
      request.on('error', reject).on('response', async (response) => {
        let text = ''
        for await (const part of response) text += String(part)
        resolve(`${response.statusCode} ${text}`)
      })
    })
    request.write('a')
    return { request, answer }
  }
}

test('an upload may take its time once it was let in; other requests, and refused ones, may not', async (t) => {
  const post = await listener(t, 100)
  const upload = post('/upload')
  assert.match(await post('/plain').answer, /^408 .*"request_timeout"/)
  const refused = post('/guarded')
  assert.equal(await refused.answer, '401 ')
  await new Promise((resolve) => refused.request.on('error', resolve).on('close', resolve))
  upload.request.end('b')
  assert.equal(await upload.answer, '200 ab')
})

test('a request that arrives in time is left alone', async (t) => {
  const post = await listener(t, 60_000)
  const { request, answer } = post('/plain')
  request.end('b')
  assert.equal(await answer, '200 ab')
})
