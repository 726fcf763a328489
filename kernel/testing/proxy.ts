import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import type { TestContext } from 'node:test'

/** What becomes of bytes on their way to the server, and of their connection. */
export type Verdict = 'pass' | 'cut' | 'cut_answer'

/** A TCP way to a server that can fail in the ways a network does. Every fault holds for open and for new connections. */
export interface Proxy {
  /** The server's URL, through the proxy. */
  readonly url: string
  /** Resets all connections, and each new one as soon as it is made. */
  cut(): void
  /** Swallows every byte: nothing is refused, nothing is answered. What was swallowed stays lost, so the connections are reset by `heal`. */
  hang(): void
  /** Holds every byte back for so long, in both directions. */
  delay(ms: number): void
  /** Ends the fault. */
  heal(): void
  /** Looks at what clients send, in the pieces that arrive on each connection: `cut` drops it with its connection, `cut_answer` lets it through and drops the connection once the server answers. */
  inspect(look: ((bytes: Buffer, connection: object) => Verdict) | undefined): void
  stop(): Promise<void>
}

type State = 'open' | 'cut' | 'hung'

const defaultPorts: Readonly<Record<string, number>> = {
  'postgres:': 5432,
  'postgresql:': 5432,
  'redis:': 6379,
  'http:': 80,
}

/** Stands between clients and the server of `address`, on a free port of 127.0.0.1. Stopped after the test when `t` is given. */
export async function startProxy(t: Pick<TestContext, 'after'> | undefined, address: string): Promise<Proxy> {
  const url = new URL(address)
  // A PostgreSQL server that only listens on a UNIX socket is addressed by its directory.
  const directory = url.searchParams.get('host')
  const port = Number(url.port) || (defaultPorts[url.protocol] ?? 80)
  const open = (): Socket =>
    directory === null ? connect(port, url.hostname.replace(/^\[|\]$/g, '')) : connect(`${directory}/.s.PGSQL.${port}`)
  const sockets = new Set<Socket>()
  let state: State = 'open'
  let delayMs = 0
  let look: ((bytes: Buffer, connection: object) => Verdict) | undefined

  const server = createServer({ noDelay: true }, (client) => {
    client.on('error', () => {})
    if (state === 'cut') return void client.resetAndDestroy()
    const upstream = open()
    let dropAnswer = false
    const drop = (): void => {
      client.resetAndDestroy()
      upstream.destroy()
    }
    sockets.add(upstream)
    upstream
      .on('error', () => {})
      .on('close', () => {
        sockets.delete(upstream)
        drop()
      })
    client.on('close', drop)
    carry(client, upstream, (bytes) => {
      const verdict = look?.(bytes, client) ?? 'pass'
      if (verdict === 'cut') drop()
      if (verdict === 'cut_answer') dropAnswer = true
      return verdict !== 'cut'
    })
    carry(upstream, client, () => {
      if (dropAnswer) drop()
      return !dropAnswer
    })
  })
  /** Byte order survives a change of the delay: each piece leaves after the one before it. */
  const carry = (from: Socket, to: Socket, mayPass: (bytes: Buffer) => boolean): void => {
    let free = 0
    const write = (bytes: Buffer): void => {
      if (to.destroyed || to.write(bytes)) return
      from.pause()
      to.once('drain', () => from.resume())
    }
    from.on('data', (bytes: Buffer) => {
      if (state === 'hung' || !mayPass(bytes)) return
      const now = performance.now()
      const at = Math.max(free, now + delayMs)
      if (at <= now) return write(bytes)
      free = at
      setTimeout(write, at - now, bytes)
    })
    from.on('end', () => void setTimeout(() => to.end(), Math.max(0, free - performance.now())))
  }
  const resetAll = (): void => {
    // Closing one end of a pair resets the other; only TCP knows a reset.
    for (const socket of sockets) socket.destroy()
  }
  await once(server.listen(0, '127.0.0.1', 1_024), 'listening')
  const stop = async (): Promise<void> => {
    resetAll()
    await new Promise((resolve) => server.close(resolve))
  }
  t?.after(stop)
  url.searchParams.delete('host')
  // A host is needed before a port can be set.
  url.hostname = '127.0.0.1'
  url.port = String((server.address() as { port: number }).port)
  return {
    url: url.href,
    cut() {
      state = 'cut'
      resetAll()
    },
    hang() {
      state = 'hung'
    },
    delay(ms) {
      delayMs = ms
    },
    heal() {
      if (state === 'hung') resetAll()
      state = 'open'
      delayMs = 0
    },
    inspect(next) {
      look = next
    },
    stop,
  }
}
