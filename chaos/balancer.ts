import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'

export interface Balancer {
  readonly url: string
  stop(): Promise<void>
}

const connectMs = 1_000

/** A TCP balancer in front of `ports`: connections take turns, and one that finds nobody listening goes to the next. */
export async function startBalancer(ports: readonly number[]): Promise<Balancer> {
  const sockets = new Set<Socket>()
  let turn = 0
  const open = async (): Promise<Socket | undefined> => {
    turn++
    for (let i = 0; i < ports.length; i++) {
      const upstream = connect({ port: ports[(turn + i) % ports.length]!, host: '127.0.0.1', noDelay: true })
      const late = setTimeout(() => upstream.destroy(new Error('no answer')), connectMs)
      try {
        await once(upstream, 'connect')
        return upstream
      } catch {
        upstream.destroy()
      } finally {
        clearTimeout(late)
      }
    }
    return undefined
  }
  const server = createServer({ noDelay: true }, (client) => {
    sockets.add(client)
    client.pause().on('error', () => {})
    void open().then((upstream) => {
      if (!upstream || client.destroyed) {
        upstream?.destroy()
        return void client.destroy()
      }
      sockets.add(upstream)
      upstream.on('error', () => {})
      for (const [one, other] of [
        [client, upstream],
        [upstream, client],
      ] as const) {
        one.pipe(other)
        one.on('close', () => {
          sockets.delete(one)
          other.destroy()
        })
      }
    })
  })
  await once(server.listen(0, '127.0.0.1', 1_024), 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as { port: number }).port}`,
    async stop() {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}
