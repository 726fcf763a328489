import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

/** A receiver of webhooks on this machine. */
export interface Receiver {
  readonly url: string
  /** How many messages have arrived. */
  readonly received: number
  /** Resolves when the message about the end of this run arrives; rejects when it is late. */
  told(runId: string): Promise<void>
  stop(): Promise<void>
}

/** A run ends within seconds, and the first delivery follows at once. */
const patienceMs = 60_000

export async function startReceiver(): Promise<Receiver> {
  const waiting = new Map<string, () => void>()
  let received = 0
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    response.writeHead(204).end()
    received++
    const { data } = JSON.parse(Buffer.concat(chunks).toString()) as { data: { runId: string } }
    waiting.get(data.runId)?.()
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`,
    get received() {
      return received
    },
    told(runId) {
      const { promise, resolve, reject } = Promise.withResolvers<void>()
      const late = setTimeout(() => reject(new Error('the webhook of a run was never told')), patienceMs)
      waiting.set(runId, resolve)
      return promise.finally(() => {
        clearTimeout(late)
        waiting.delete(runId)
      })
    },
    async stop() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}
