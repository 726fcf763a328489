import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'

export interface Post {
  readonly headers: IncomingHttpHeaders
  readonly body: string
}

/** A receiver that answers what it is told: each status once, the last one from then on. */
export async function startReceiver(t: TestContext, ...statuses: readonly (number | Record<string, string>)[]) {
  const posts: Post[] = []
  const waiting: (() => void)[] = []
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const answer = statuses[Math.min(posts.length, statuses.length - 1)] ?? 204
    posts.push({ headers: request.headers, body: Buffer.concat(chunks).toString() })
    if (typeof answer === 'number') response.writeHead(answer).end()
    else response.writeHead(503, answer).end()
    for (const resolve of waiting.splice(0)) resolve()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`,
    /** For `allowHosts`. */
    allowed: `127.0.0.1:${(server.address() as AddressInfo).port}=*`,
    posts,
    async received(count: number): Promise<void> {
      while (posts.length < count) await new Promise<void>((resolve) => waiting.push(resolve))
    },
  }
}
