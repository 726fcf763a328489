// One hop of the yardstick: the simplest correct streaming pass-through with Fastify and undici. Bytes in, bytes out,
// back-pressure and the client's departure honoured; no authentication, no parsing, nothing stored. Its own process.
import Fastify from 'fastify'
import { Pool } from 'undici'
import { announce } from './processes.ts'

// No bound on connections: each open stream holds one.
const upstream = new Pool(process.argv[2] ?? '', { connections: null, bodyTimeout: 0 })
const app = Fastify({ logger: false })
app.removeAllContentTypeParsers()
app.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
app.post('/*', async (request, reply) => {
  const left = new AbortController()
  reply.raw.once('close', () => left.abort())
  reply.hijack()
  await upstream
    .stream(
      {
        path: request.url,
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: request.body as Buffer,
        signal: left.signal,
      },
      ({ statusCode, headers }) => reply.raw.writeHead(statusCode, { 'content-type': String(headers['content-type']) }),
    )
    .catch(() => {
      if (reply.raw.headersSent) reply.raw.destroy()
      else reply.raw.writeHead(502).end()
    })
})
app.get('/readyz', async () => 'ok')
await app.listen({ host: '127.0.0.1', port: 0 })
announce(app.server)
