import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'

export interface Balancer {
  readonly url: string
  stop(): Promise<void>
}

const connectMs = 1_000

/**
 * A TCP balancer in front of `ports`: connections take turns, and one that finds nobody listening goes to the next. Those that
 * are not ready come last; without `isReady` nobody asks.
 */
export async function startBalancer(
  ports: readonly number[],
  isReady: (port: number) => boolean = () => true,
): Promise<Balancer> {
  const sockets = new Set<Socket>()
  let turn = 0
  const open = async (): Promise<Socket | undefined> => {
    turn++
    const inTurn = ports.map((_, i) => ports[(turn + i) % ports.length]!)
    for (const port of [...inTurn.filter(isReady), ...inTurn.filter((one) => !isReady(one))]) {
      const upstream = connect({ port, host: '127.0.0.1', noDelay: true })
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
