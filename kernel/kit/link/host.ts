import type { IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import fp from 'fastify-plugin'
import type { AppError } from '../../contracts/errors.ts'
import { unavailable } from '../../contracts/http-errors.ts'
import { errorBody, failureOf, refuseRaw } from '../../http/errors.ts'
import { streamsOf } from '../../http/streams.ts'
import { parseOwnJson } from '../bodies.ts'
import { proofsOf } from '../proof.ts'
import { linkHeader, linkPath, linkProtocol, type LinkTimes, linkVersion } from './connection.ts'
import type { Admission, LinkHostOptions, ServedRoute } from '../call.ts'
import { LinkRoutes, newRequestId, ServedLink } from './served.ts'

/** The links of one listener. */
export interface LinkHost {
  /** True when callers are told that they may have a link. */
  readonly offered: boolean
  /** Accepts links from now on. */
  accept(admission: Admission, times?: LinkTimes): void
  add(served: ServedRoute): void
  wants(request: IncomingMessage): boolean
  readonly upgrade: (request: IncomingMessage, socket: Duplex, head: Buffer) => void
  /** Begins nothing more on links, and accepts no new links: callers continue over HTTP. Exchanges that were begun continue. */
  leave(): void
  /** Leaves, and resolves when all begun exchanges have ended. */
  end(): Promise<void>
}

export const linkHostKey = Symbol('agent-orc.links')

const maxLinks = 1_024
const stopping = (): AppError => unavailable({ message: 'This server is stopping; try again.', retryable: true })
const tooMany = (): AppError => unavailable({ message: 'This server has as many links as it may.', retryable: true })

export function createLinkHost(options: LinkHostOptions): LinkHost {
  const routes = new LinkRoutes(options)
  const links = new Set<ServedLink>()
  let admission: Admission | undefined
  let times: LinkTimes | undefined
  let leaving = false
  const host: LinkHost = {
    get offered() {
      return admission !== undefined && !leaving
    },
    accept(admitting, ticking) {
      if (admission) throw new Error('this listener has links already')
      admission = admitting
      times = ticking
    },
    add: (served) => routes.add(served),
    wants: ({ method, url, headers }) =>
      admission !== undefined &&
      method === 'GET' &&
      url?.endsWith(linkPath) === true &&
      headers.upgrade === linkProtocol &&
      headers[linkHeader] === linkVersion,
    upgrade(request, socket, head) {
      // Until the link exists nothing else listens for errors. A caller that disconnects meanwhile is no failure.
      socket.on('error', () => socket.destroy())
      const admitted = async (admitting: Admission): Promise<void> => {
        if (leaving) throw stopping()
        if (links.size >= maxLinks) throw tooMany()
        await options.prove(request)
        await admitting.admit(request)
        if (leaving) throw stopping()
        socket.write(`HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: ${linkProtocol}\r\n\r\n`)
        if ('setNoDelay' in socket && typeof socket.setNoDelay === 'function') socket.setNoDelay(true)
        const closed = (link: ServedLink): void => void links.delete(link)
        links.add(new ServedLink(socket, head, { options, routes, admission: admitting, times, closed }))
      }
      if (!admission || !host.wants(request)) return void socket.destroy()
      admitted(admission).catch((error: unknown) => {
        const requestId = newRequestId()
        const failure = failureOf(error, { requestId, route: linkPath, log: options.log })
        refuseRaw(socket, failure.status, errorBody(failure, requestId))
      })
    },
    leave() {
      leaving = true
      for (const link of links) link.leave()
    },
    async end() {
      host.leave()
      await Promise.all([...links].map((link) => link.end()))
    },
  }
  return host
}

interface LinkOptions {
  readonly leaving: AbortSignal
  readonly logRequests: boolean
}

/**
 * Links of peers, whose requests are checked and limited like those over HTTP. The opener of a link authenticates once; its requests need not do so
 * again.
 */
export const peerLinks = fp(
  async (app, { leaving, logRequests }: LinkOptions) => {
    const links = createLinkHost({
      log: app.log,
      streams: streamsOf(app),
      compile: app.validatorCompiler!,
      parse: parseOwnJson,
      logRequests,
      bodyLimit: app.initialConfig.bodyLimit!,
      prove: (request) => proofsOf(app).check(request),
    })
    app.decorate(linkHostKey, links)
    // An upgrade request for any other protocol is answered as plain HTTP.
    Object.assign(app.server, { shouldUpgradeCallback: links.wants })
    app.server.on('upgrade', links.upgrade)
    leaving.addEventListener('abort', links.leave)
    app.addHook('preClose', () => links.end())
  },
  { name: 'agent-orc-links', dependencies: ['agent-orc-bodies', 'agent-orc-proofs', 'agent-orc-streams'] },
)
