import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'

/** One request as it arrived. */
export interface ApiRequest {
  readonly method: string
  /** Path and query. */
  readonly url: string
  readonly headers: IncomingHttpHeaders
  readonly body: Buffer
}

export interface ApiAnswer {
  readonly status: number
  /** Written as JSON; text as it is. */
  readonly body?: unknown
  readonly headers?: Readonly<Record<string, string>>
  /** Instead of a body. */
  readonly stream?: (response: ServerResponse) => void
}

/** A way in which a request fails. */
export type ApiFault =
  /** The request is carried out, and the connection is cut before the answer. */
  | 'lose_answer'
  /** The connection is cut before the request is carried out. */
  | 'lose_request'
  /** This is answered, and the request is not carried out. */
  | ApiAnswer

/** Stands for the HTTP API of another company, and fails on demand. */
export interface StandInApi {
  readonly url: string
  readonly requests: readonly ApiRequest[]
  /** The next `times` requests whose `METHOD /path` begins with `start` meet this fault. */
  plan(start: string, fault: ApiFault, times?: number): void
}

/** A real HTTP server on a free port of 127.0.0.1, closed after the test. */
export async function startStandInApi(
  t: Pick<TestContext, 'after'>,
  serve: (request: ApiRequest) => Promise<ApiAnswer> | ApiAnswer,
): Promise<StandInApi> {
  const requests: ApiRequest[] = []
  const planned: { readonly start: string; readonly fault: ApiFault; left: number }[] = []

  const take = async (incoming: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { method = '', url = '', headers } = incoming
    const request = { method, url, headers, body: Buffer.concat(await incoming.toArray()) }
    requests.push(request)
    const due = planned.find(({ start, left }) => left > 0 && `${method} ${url}`.startsWith(start))
    if (due) due.left--
    if (due?.fault === 'lose_request') return void incoming.socket.destroy()
    const { status, body, headers: more, stream } = typeof due?.fault === 'object' ? due.fault : await serve(request)
    if (due?.fault === 'lose_answer') return void incoming.socket.destroy()
    response.writeHead(status, { 'content-type': 'application/json', ...more })
    if (stream) stream(response)
    else response.end(typeof body === 'string' || body === undefined ? body : JSON.stringify(body))
  }
  const server = createServer((incoming, response) => {
    take(incoming, response).catch((error: unknown) => response.destroy(error as Error))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    plan: (start, fault, times = 1) => void planned.push({ start, fault, left: times }),
  }
}
