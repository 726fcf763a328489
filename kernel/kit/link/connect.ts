import { request as overHttp } from 'node:http'
import { request as overTls } from 'node:https'
import { linkHeader, linkPath, linkProtocol, type LinkTimes, linkVersion } from './connection.ts'
import { LinkCaller } from './caller.ts'

export interface LinkTarget {
  readonly origin: string
  /** Before `/link`; '' unless the peer lives below a path. */
  readonly prefix: string
  /** How the caller shows who it is. */
  readonly headers: Readonly<Record<string, string>>
  readonly timeoutMs: number
  readonly times?: LinkTimes | undefined
}

/** Resolves to the link, or to the status with which the peer refused it; rejects when it cannot be reached. */
export function connectLink({ origin, prefix, headers, timeoutMs, times }: LinkTarget) {
  return new Promise<LinkCaller | number>((resolve, reject) => {
    const asking = (origin.startsWith('https:') ? overTls : overHttp)(origin + prefix + linkPath, {
      // A connection of its own: it does not come back to be used for another request.
      agent: false,
      headers: { ...headers, connection: 'Upgrade', upgrade: linkProtocol, [linkHeader]: linkVersion },
      timeout: timeoutMs,
    })
    asking.once('upgrade', (_response, socket, head) => {
      socket.setTimeout(0)
      socket.setNoDelay(true)
      resolve(new LinkCaller(socket, head, times))
    })
    asking.once('response', (response) => {
      response.resume()
      asking.destroy()
      resolve(response.statusCode ?? 0)
    })
    asking.once('timeout', () => asking.destroy(new Error('the link was not answered in time')))
    asking.once('error', reject)
    asking.end()
  })
}
