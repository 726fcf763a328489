import type { Duplex } from 'node:stream'
import { failingStops, isFailingStop, leaving } from '#contracts/runner'

/** The protocol name under which a connection is upgraded, and its version. Another version is another protocol. */
export const linkProtocol = 'agent-orc-link'
export const linkVersion = '1'
/** The header on HTTP answers of a peer that supports links, and on the upgrade. */
export const linkHeader = 'x-agent-orc-link'
export const linkPath = '/link'

/**
 * The kinds of frames. An exchange: `open` -> `head` -> `data`* -> `end`, or `reset` from either side. A frame is the length of its payload (4
 * bytes), its kind (1), its exchange (4; 0 for frames about the connection), then the payload.
 */
export const kinds = {
  /** Caller: length of the request line as JSON (4), the request line, the body. */
  open: 1,
  /** Server: status and headers as JSON. */
  head: 2,
  data: 3,
  end: 4,
  /** One byte with the reason, one of `resets`. */
  reset: 5,
  /** Caller: how many bytes of `data` more may be sent (4). */
  credit: 6,
  ping: 7,
  pong: 8,
  /** Server: begins nothing after this exchange (4), and closes when the open exchanges have ended. */
  leave: 9,
} as const
export type Kind = (typeof kinds)[keyof typeof kinds]

export const resets = {
  /** Caller: the work must end. */
  cancelled: 1,
  /** Caller: the work must continue for another reader. */
  leaving: 2,
  /** Server: the exchange was not begun. */
  refused: 3,
  /** Server: the answer broke off without an end. */
  broken: 4,
  /** Caller: like `cancelled`, which is how a peer that does not know these reads them. */
  timeout: 5,
  budget_exceeded: 6,
} as const

/** Translates the reason of a caller's signal into a reset, and back. An unknown reason is `cancelled`. */
export const resetOf = (reason: unknown): number =>
  reason === leaving || isFailingStop(reason) ? resets[reason] : resets.cancelled
export const reasonOf = (reset: number | undefined): string =>
  ([leaving, ...failingStops] as const).find((reason) => resets[reason] === reset) ?? 'cancelled'

/** Bytes of `data` that a caller takes for an exchange before it has read any. */
export const initialCredit = 256 * 1024
export const maxDataBytes = 64 * 1024
/** The most bytes of a body with its request line. Larger requests use HTTP, where they delay nothing else. */
export const maxOpenBytes = 1024 * 1024
export const maxStreams = 16_384
const maxFrameBytes = maxOpenBytes + 64 * 1024
const headerBytes = 9
/** Milliseconds that the other side may take to close the connection too. */
const closeMs = 1_000
/** The most bytes that wait for the end of the turn. With more, senders have to wait. */
const highWater = 1024 * 1024
/** A payload of at least this many bytes is written without a copy, because copying would cost more than an additional piece. */
const largePayload = 8 * 1024

export interface LinkTimes {
  /** Milliseconds of silence after which the peer is pinged. */
  readonly pingMs: number
  /** Milliseconds of silence after which the peer counts as gone. */
  readonly deadMs: number
}
const linkTimes: LinkTimes = { pingMs: 5_000, deadMs: 20_000 }

/** How one end handles the frames of its connection. */
export interface Frames {
  /**
   * `payload` is part of a larger buffer, so copy it to keep it for long. For a data frame it may be only a part, and the rest follows. Throws on a
   * frame that is not allowed.
   */
  frame(kind: number, stream: number, payload: Buffer): void
  /** Called once, as the last call. */
  closed(cause: Error): void
  /** Called each time that this many milliseconds have passed. */
  quiet?(ms: number): void
}

/** The peer violates the protocol. */
export class LinkError extends Error {}

/** Frames over one socket. The frames of one turn of the event loop leave in one write, and a silent peer is detected. */
export class Connection {
  readonly #socket: Duplex
  readonly #use: Frames
  readonly #watch: NodeJS.Timeout
  #closed = false
  #out: { kind: Kind; stream: number; payload: Buffer | undefined }[] = []
  #outBytes = 0
  /** How many of these bytes are payloads that are written without a copy. */
  #largeBytes = 0
  #scheduled = false
  #full = false
  #waiting: (() => void)[] = []
  #parts: Buffer[] = []
  #held = 0
  #needed = headerBytes
  /** How many bytes the current data frame still lacks, and the frame's exchange. */
  #dataLeft = 0
  #dataStream = 0
  #heard = true

  constructor(socket: Duplex, head: Buffer, use: Frames, { pingMs, deadMs }: LinkTimes = linkTimes) {
    this.#socket = socket
    this.#use = use
    let silentMs = 0
    this.#watch = setInterval(() => {
      silentMs = this.#heard ? 0 : silentMs + pingMs
      this.#heard = false
      if (silentMs >= deadMs) this.destroy(new LinkError('the peer is silent'))
      else this.send(kinds.ping, 0)
      use.quiet?.(pingMs)
    }, pingMs).unref()
    socket.on('data', (chunk: Buffer) => this.#read(chunk))
    socket.on('drain', () => {
      this.#full = false
      this.#wake()
    })
    socket.on('error', (error: Error) => this.destroy(error))
    socket.on('end', () => this.destroy(new LinkError('the peer closed the connection')))
    socket.on('close', () => this.destroy(new LinkError('the connection was closed')))
    if (head.length > 0) setImmediate(() => this.#read(head))
  }

  get closed(): boolean {
    return this.#closed
  }
  /** True while senders of more data must wait for `room`. */
  get full(): boolean {
    return this.#full || this.#outBytes > highWater
  }

  send(kind: Kind, stream: number, payload?: Buffer): void {
    if (this.#closed) return
    this.#out.push({ kind, stream, payload })
    const length = payload?.length ?? 0
    this.#outBytes += headerBytes + length
    if (length >= largePayload) this.#largeBytes += length
    if (this.#scheduled) return
    this.#scheduled = true
    setImmediate(() => this.#flush())
  }

  /** Resolves when there is room, in the order of the calls, and when the connection is closed. */
  room(): Promise<void> {
    return new Promise((resolve) => {
      if (this.#closed || !this.full) resolve()
      else this.#waiting.push(resolve)
    })
  }

  /** Sends what is queued, and closes. */
  end(): void {
    this.#flush()
    this.#close(new LinkError('the link was closed'))
    this.#socket.end()
    // A peer that does not close its side must not delay a stop.
    const late = setTimeout(() => this.#socket.destroy(), closeMs)
    this.#socket.once('close', () => clearTimeout(late))
  }

  destroy(cause: Error): void {
    this.#close(cause)
    this.#socket.destroy()
  }

  #close(cause: Error): void {
    if (this.#closed) return
    this.#closed = true
    clearInterval(this.#watch)
    this.#out = []
    this.#parts = []
    const waiting = this.#waiting
    this.#waiting = []
    for (const wake of waiting) wake()
    this.#use.closed(cause)
  }

  #flush(): void {
    this.#scheduled = false
    if (this.#closed || this.#out.length === 0) return
    const bytes = Buffer.allocUnsafe(this.#outBytes - this.#largeBytes)
    let at = 0
    let written = 0
    if (this.#largeBytes > 0) this.#socket.cork()
    for (const { kind, stream, payload } of this.#out) {
      bytes.writeUInt32BE(payload?.length ?? 0, at)
      bytes[at + 4] = kind
      bytes.writeUInt32BE(stream, at + 5)
      at += headerBytes
      if (!payload) continue
      if (payload.length < largePayload) at += payload.copy(bytes, at)
      else {
        this.#socket.write(bytes.subarray(written, at))
        if (!this.#socket.write(payload)) this.#full = true
        written = at
      }
    }
    if (written < at && !this.#socket.write(bytes.subarray(written, at))) this.#full = true
    if (this.#largeBytes > 0) this.#socket.uncork()
    this.#out = []
    this.#outBytes = this.#largeBytes = 0
    this.#wake()
  }

  /** Wakes one waiting sender at a time, because each may fill the connection again. */
  #wake(): void {
    if (this.#waiting.length === 0 || this.full) return
    this.#waiting.shift()!()
    if (this.#waiting.length > 0) queueMicrotask(() => this.#wake())
  }

  #read(chunk: Buffer): void {
    this.#heard = true
    try {
      for (let at = 0; at < chunk.length && !this.#closed;) {
        at += this.#dataLeft > 0 ? this.#data(chunk, at) : this.#gather(chunk, at)
      }
    } catch (error) {
      this.destroy(error instanceof Error ? error : new LinkError('a frame could not be read'))
    }
  }

  /** Passes data on as it arrives, across frame boundaries: assembling a whole frame first would cost a copy. Returns how much was taken. */
  #data(chunk: Buffer, at: number): number {
    const piece = chunk.subarray(at, at + this.#dataLeft)
    this.#dataLeft -= piece.length
    this.#use.frame(kinds.data, this.#dataStream, piece)
    return piece.length
  }

  /** Takes the bytes that the current header or frame lacks. Returns how many that were. */
  #gather(chunk: Buffer, at: number): number {
    const piece = chunk.subarray(at, at + this.#needed - this.#held)
    this.#parts.push(piece)
    this.#held += piece.length
    if (this.#held < this.#needed) return piece.length
    const bytes = this.#parts.length === 1 ? piece : Buffer.concat(this.#parts, this.#held)
    const length = bytes.readUInt32BE(0)
    const kind = bytes[4]!
    if (length > (kind === kinds.open ? maxFrameBytes : maxDataBytes)) throw new LinkError('a frame is too large')
    if (kind !== kinds.data && this.#held < headerBytes + length) {
      this.#parts = [bytes]
      this.#needed = headerBytes + length
      return piece.length
    }
    this.#parts = []
    this.#held = 0
    this.#needed = headerBytes
    this.#frame(kind, bytes.readUInt32BE(5), length, bytes.subarray(headerBytes))
    return piece.length
  }
  #frame(kind: number, stream: number, length: number, payload: Buffer): void {
    if (kind === kinds.data) {
      this.#dataLeft = length
      this.#dataStream = stream
    } else if (kind === kinds.ping) this.send(kinds.pong, 0)
    else if (kind !== kinds.pong) this.#use.frame(kind, stream, payload)
  }
}

export const u32 = (value: number): Buffer => {
  const bytes = Buffer.allocUnsafe(4)
  bytes.writeUInt32BE(value)
  return bytes
}
