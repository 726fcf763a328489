import type { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import { httpErrors } from '#kernel'

/** A sender who is silent for so long has gone. */
const silentMs = 60_000

/**
 * The body of a request as it arrives. It may take as long as it needs, so long as it goes on. The connection stays, so that whoever is
 * refused hears why.
 */
export async function* arriving({ body }: FastifyRequest): AsyncGenerator<Uint8Array> {
  if (body === undefined || body === null) return
  const stream = body as Readable
  const silence = setTimeout(() => stream.destroy(httpErrors.requestTimeout()), silentMs).unref()
  try {
    for await (const chunk of stream.iterator({ destroyOnReturn: false })) {
      silence.refresh()
      yield chunk as Uint8Array
      silence.refresh()
    }
  } finally {
    clearTimeout(silence)
  }
}
