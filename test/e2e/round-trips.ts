import type { TestContext } from 'node:test'
import { type Proxy, startProxy } from '#testing'

/** The statements that one client sent before it waited for an answer: by name, or the first words of a text without one. */
export type RoundTrip = readonly string[]

export interface RoundTrips {
  /** The database's address through the counting proxy. */
  readonly url: string
  /** All round trips so far, of every connection, in the order in which they were sent. */
  readonly seen: readonly RoundTrip[]
}

/** Stands between clients and a database and reads what they send: PostgreSQL's protocol 3, without TLS. */
export async function countRoundTrips(t: Pick<TestContext, 'after'>, dsn: string): Promise<RoundTrips> {
  const proxy: Proxy = await startProxy(t, dsn)
  const seen: RoundTrip[] = []
  const readers = new WeakMap<object, (bytes: Buffer) => void>()
  proxy.inspect((bytes, connection) => {
    let read = readers.get(connection)
    if (!read) readers.set(connection, (read = createReader((trip) => void seen.push(trip))))
    read(bytes)
    return 'pass'
  })
  return { url: proxy.url, seen }
}

const sslRequest = 80_877_103

/** Reads one connection's messages, however its bytes are cut; calls `tell` with each Sync and each simple query. */
function createReader(tell: (trip: RoundTrip) => void): (bytes: Buffer) => void {
  let rest: Buffer = Buffer.alloc(0)
  let started = false
  let trip: string[] = []
  /** Texts of unnamed statements until they are bound. */
  let unnamed = ''
  const message = (type: string, body: Buffer): void => {
    if (type === 'P') {
      const [name, text] = strings(body)
      if (name === '') unnamed = firstWords(text)
    } else if (type === 'B') {
      const [, name] = strings(body)
      trip.push(name || unnamed)
    } else if (type === 'Q') {
      tell([firstWords(strings(body)[0])])
    } else if (type === 'S') {
      tell(trip)
      trip = []
    }
  }
  return (bytes) => {
    rest = Buffer.concat([rest, bytes])
    for (;;) {
      // The first message, and what may come before it, has no type.
      const head = started ? 1 : 0
      if (rest.length < head + 4) return
      const length = rest.readInt32BE(head)
      if (rest.length < head + length) return
      const body = rest.subarray(head + 4, head + length)
      if (started) message(String.fromCharCode(rest[0]!), body)
      else started = body.readInt32BE(0) !== sslRequest
      rest = rest.subarray(head + length)
    }
  }
}

const strings = (body: Buffer): [string, string] => {
  const [first = '', second = ''] = body.toString('latin1').split('\0', 2)
  return [first, second]
}

const firstWords = (text: string): string => text.trim().split(/\s+/, 4).join(' ')
