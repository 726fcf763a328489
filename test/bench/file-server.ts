import { createReadStream, createWriteStream } from 'node:fs'
import { mkdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import Fastify from 'fastify'

// The yardstick of `bench:storage`: streams bodies to files and files to answers, and promises nothing.
const dir = process.argv[2]!
await mkdir(dir, { recursive: true })
const app = Fastify()
app.removeAllContentTypeParsers()
app.addContentTypeParser('*', (_request, body, done) => done(null, body))
app.put<{ Params: { name: string } }>('/:name', async (request, reply) => {
  await pipeline(request.raw, createWriteStream(join(dir, request.params.name)))
  return reply.code(201).send()
})
app.get<{ Params: { name: string } }>('/:name', async (request, reply) => {
  const path = join(dir, request.params.name)
  const { size } = await stat(path)
  return reply.header('content-length', size).send(createReadStream(path))
})
console.log(JSON.stringify({ ready: true, url: await app.listen({ host: '127.0.0.1', port: 0 }) }))
