import { Type } from '@sinclair/typebox'
import type { FastifyReply } from 'fastify'
import { access, type App, failures } from '#kernel'
import { appErrors } from '#contracts/apps'
import type { Kv } from '#contracts/kv'
import { limitErrors } from '#contracts/limits'
import { addressLimit, type ClientAddress } from '#kit'
import { callbackPath } from './connections/index.ts'
import type { Arrival, Connector } from './connect.ts'
import { CallbackQuery } from './schema.ts'

interface CallbackOptions {
  readonly connector: Pick<Connector, 'finish'>
  readonly kv: Pick<Kv, 'hit'>
  readonly clientOf: ClientAddress
  /** The most requests from one address in a minute. */
  readonly requestsPerMinute: number
}

/** Bounds on the parameters of an answer, far above what any authorization server has to send. */
const mostParameters = 20
const mostLength = 8_000

/**
 * The page to which owners of accounts come back. It is open to anybody, so each request must carry the state of one attempt, which nobody can guess
 * and which works once. The redirect goes only to the stored return URL, never to a URL from the request.
 */
export async function callbackRoutes(app: App, options: CallbackOptions): Promise<void> {
  const { connector, kv, clientOf, requestsPerMinute } = options
  const limit = await addressLimit(app, {
    name: 'apps-callback',
    kv,
    clientOf,
    max: requestsPerMinute,
    refused: (when) =>
      limitErrors.limitReached({ ...when, message: 'Too many come back from this address; try again in a minute.' }),
  })
  app.get(
    callbackPath,
    {
      ...access('public'),
      onRequest: limit,
      schema: {
        tags: ['apps'],
        summary: 'Return from connecting an account',
        description:
          'Authorization servers redirect browsers here (RFC 6749, RFC 9207). Answers a page, or redirects to the `returnUrl` of the connection. An attempt works once, within ten minutes. Clients that accept `text/html` get errors as a page, too.',
        querystring: CallbackQuery,
        produces: ['text/html'],
        response: {
          200: Type.String({ description: 'A page that says how it ended.' }),
          303: Type.Unsafe<undefined>({ type: 'null', description: 'Redirects to the `returnUrl`.' }),
          ...failures(appErrors.connectRefused, limitErrors.limitReached),
        },
      },
    },
    async (request, reply) => {
      const arrival = await connector.finish(parametersOf(request.query))
      // Neither the code nor the return URL may reach caches or other sites.
      void reply.header('cache-control', 'no-store').header('referrer-policy', 'no-referrer')
      if (arrival.returnUrl !== undefined) return reply.redirect(arrival.returnUrl, 303)
      // A browser always gets a page; a program gets the error as JSON.
      if (!arrival.ok && !request.headers.accept?.includes('text/html')) {
        throw appErrors.connectRefused({ message: arrival.message })
      }
      return page(reply, arrival)
    },
  )
}

/** The text parameters that occur exactly once: RFC 6749 3.1 forbids repeated ones. */
function parametersOf(query: Readonly<Record<string, unknown>>): Record<string, string> {
  const once = Object.entries(query).filter(
    (entry): entry is [string, string] => typeof entry[1] === 'string' && entry[1].length <= mostLength,
  )
  return Object.fromEntries(once.slice(0, mostParameters))
}

function page(reply: FastifyReply, { ok, message }: Arrival): FastifyReply {
  const title = ok ? 'Connected' : 'Not connected'
  return reply
    .code(ok ? 200 : 400)
    .header('content-security-policy', "default-src 'none'; frame-ancestors 'none'; base-uri 'none'")
    .header('x-content-type-options', 'nosniff')
    .type('text/html; charset=utf-8')
    .send(
      `<!doctype html><html lang="en"><meta charset="utf-8"><title>${title}</title><h1>${title}</h1><p>${escaped(message)}</p></html>`,
    )
}

const entities: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
}
const escaped = (text: string): string => text.replaceAll(/[&<>"']/g, (character) => entities[character]!)
