import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import type { TestContext } from 'node:test'

/** What happens to bytes on their way to the server, and to their connection. */
export type Verdict = 'pass' | 'cut' | 'cut_answer'

/** A TCP proxy that can fail like a network. Every fault applies to open and to new connections. */
export interface Proxy {
  /** The server's URL, through the proxy. */
  readonly url: string
  /** Resets all connections, and each new one as soon as it is made. */
  cut(): void
  /** Swallows every byte: nothing is refused, nothing is answered. Swallowed bytes stay lost, so `heal` resets the connections. */
  hang(): void
  /** Delays every byte by so many milliseconds, in both directions. */
  delay(ms: number): void
  /** Ends the fault. */
  heal(): void
  /** Looks at what clients send, in the pieces that arrive on each connection: `cut` drops it with its connection, `cut_answer` lets it through and drops the connection once the server answers. */
  inspect(look: ((bytes: Buffer, connection: object) => Verdict) | undefined): void
  stop(): Promise<void>
}

const defaultPorts: Readonly<Record<string, number>> = {
  'postgres:': 5432,
  'postgresql:': 5432,
  'redis:': 6379,
  'http:': 80,
}

/** Stands between clients and the server of `address`, on a free port of 127.0.0.1. Stopped after the test when `t` is given. */
export async function startProxy(t: Pick<TestContext, 'after'> | undefined, address: string): Promise<Proxy> {
  const proxy = new TcpProxy(new URL(address))
  await proxy.listen()
  t?.after(() => proxy.stop())
  return proxy
}

class TcpProxy implements Proxy {
  url = ''
  readonly #address: URL
  readonly #server = createServer({ noDelay: true }, (client) => this.#connect(client))
  readonly #upstreams = new Set<Socket>()
  #state: 'open' | 'cut' | 'hung' = 'open'
  #delayMs = 0
  #look: ((bytes: Buffer, connection: object) => Verdict) | undefined

  constructor(address: URL) {
    this.#address = address
  }

  async listen(): Promise<void> {
    await once(this.#server.listen(0, '127.0.0.1', 1_024), 'listening')
    const url = new URL(this.#address)
    url.searchParams.delete('host')
    // A host is needed before a port can be set.
    url.hostname = '127.0.0.1'
    url.port = String((this.#server.address() as { port: number }).port)
    this.url = url.href
  }

  cut(): void {
    this.#state = 'cut'
    this.#resetAll()
  }
  hang(): void {
    this.#state = 'hung'
  }
  delay(ms: number): void {
    this.#delayMs = ms
  }
  heal(): void {
    if (this.#state === 'hung') this.#resetAll()
    this.#state = 'open'
    this.#delayMs = 0
  }
  inspect(look: ((bytes: Buffer, connection: object) => Verdict) | undefined): void {
    this.#look = look
  }
  async stop(): Promise<void> {
    this.#resetAll()
    await new Promise((resolve) => this.#server.close(resolve))
  }

  /** Closing one end of a pair resets the other. Only TCP has resets. */
  #resetAll(): void {
    for (const socket of this.#upstreams) socket.destroy()
  }

  #open(): Socket {
    const { searchParams, port: given, protocol, hostname } = this.#address
    const port = Number(given) || (defaultPorts[protocol] ?? 80)
    // A PostgreSQL server that only listens on a UNIX socket is addressed by its directory.
    const directory = searchParams.get('host')
    if (directory !== null) return connect(`${directory}/.s.PGSQL.${port}`)
    return connect(port, hostname.replace(/^\[|\]$/g, ''))
  }

  #connect(client: Socket): void {
    client.on('error', () => {})
    if (this.#state === 'cut') return void client.resetAndDestroy()
    const upstream = this.#open()
    let dropAnswer = false
    const drop = (): void => {
      client.resetAndDestroy()
      upstream.destroy()
    }
    this.#upstreams.add(upstream)
    upstream
      .on('error', () => {})
      .on('close', () => {
        this.#upstreams.delete(upstream)
        drop()
      })
    client.on('close', drop)
    this.#carry(client, upstream, (bytes) => {
      const verdict = this.#look?.(bytes, client) ?? 'pass'
      if (verdict === 'cut') drop()
      if (verdict === 'cut_answer') dropAnswer = true
      return verdict !== 'cut'
    })
    this.#carry(upstream, client, () => {
      if (dropAnswer) drop()
      return !dropAnswer
    })
  }

  /** Changing the delay keeps the byte order, because each piece leaves after the previous one. */
  #carry(from: Socket, to: Socket, mayPass: (bytes: Buffer) => boolean): void {
    let free = 0
    const write = (bytes: Buffer): void => {
      if (to.destroyed || to.write(bytes)) return
      from.pause()
      to.once('drain', () => from.resume())
    }
    from.on('data', (bytes: Buffer) => {
      if (this.#state === 'hung' || !mayPass(bytes)) return
      const now = performance.now()
      const at = Math.max(free, now + this.#delayMs)
      if (at <= now) return write(bytes)
      free = at
      setTimeout(write, at - now, bytes)
    })
    from.on('end', () => void setTimeout(() => to.end(), Math.max(0, free - performance.now())))
  }
}
