import { Pool } from 'undici'
import type { Hostile, Told } from './attack.ts'

const json = { 'content-type': 'application/json' }

/** What attackers send requests with. */
export class Client {
  readonly #pool: Pool
  readonly #headers: Record<string, string>
  readonly #told: Told
  readonly #once: boolean
  #closed = false

  /** `once`: each connection serves one request. */
  constructor(origin: string, key: string, told: Told, { once = false }: { readonly once?: boolean } = {}) {
    this.#pool = new Pool(origin, { connections: 64, headersTimeout: 60_000, bodyTimeout: 60_000 })
    this.#once = once
    this.#headers = { ...json, authorization: `Bearer ${key}` }
    this.#told = told
  }
  /** Sends a request, with JSON, JSON that is written already, or bytes, and reads all of its answer. `more` are headers. */
  async send(method: 'GET' | 'POST' | 'PUT', path: string, body?: unknown, more: object = {}): Promise<string> {
    try {
      const sent = body === undefined ? {} : { body: Buffer.isBuffer(body) ? body : JSON.stringify(body) }
      const headers = { ...this.#headers, ...more }
      const reply = await this.#pool.request({ method, path, headers, reset: this.#once, ...sent })
      const text = await reply.body.text()
      this.#told(reply.statusCode)
      return reply.statusCode < 300 ? text : ''
    } catch (error) {
      // What it was in the midst of when it was stopped says nothing.
      if (this.#closed) return ''
      this.#told((error as Error).message.slice(0, 40))
      return ''
    }
  }
  close(): Promise<void> {
    this.#closed = true
    return this.#pool.destroy()
  }
}

/** Sends as fast as answers come, `abreast` at a time. */
export async function flood(abreast: number, stop: AbortSignal, send: (n: number) => Promise<unknown>): Promise<void> {
  let n = 0
  const lane = async (): Promise<void> => {
    while (!stop.aborted) await send(n++)
  }
  await Promise.all(Array.from({ length: abreast }, lane))
}

const gap = '(gap)'
/**
 * JSON with a long text in the place of `gap`, of which only that text is made anew each time: what the attacker takes of the processors is not the
 * fleet's to answer for. The text needs no escapes.
 */
export function around(body: (gap: string) => object): (text: string | Buffer) => Buffer {
  const [head, tail] = JSON.stringify(body(gap))
    .split(gap)
    .map((part) => Buffer.from(part))
  return (text) => Buffer.concat([head!, typeof text === 'string' ? Buffer.from(text) : text, tail!])
}

export const clientOf = ({ conductor, key }: Hostile, told: Told): Client => new Client(conductor, key, told)
