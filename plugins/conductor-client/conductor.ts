import { Pool } from 'undici'
import type { Signer, SigningKey } from '#contracts/signing'
import { exchange, readBody, type Reply } from '#kit'
import { ConnectionLost } from './errors.ts'

const connectMs = 2_000
/** Creating a session, or hydrating one, comes before the headers of a new run. */
const headersMs = 30_000
/** A silent stream is opened anew after this: a peer that vanished without a word is found out. */
export const silentMs = 60_000

/** A refusal is read so that its connection can be used again. */
const refusalBytes = 64 * 1024
const nothing = new Uint8Array()

export interface Call {
  readonly tenantId: string
  readonly method: 'GET' | 'POST' | 'DELETE'
  readonly path: string
  readonly body?: Uint8Array
  readonly accept?: string
  readonly signal: AbortSignal
}

/** The conductor's internal listener. Every call is signed for itself, so a repeated one carries a fresh nonce. */
export interface Conductor {
  call(call: Call): Promise<Reply>
  close(): Promise<void>
}

export function createConductor(address: URL, signer: Signer): Conductor {
  const prefix = address.pathname.replace(/\/+$/, '')
  // No bound on connections: each open run holds one, and a bounded pool would queue one stream behind another.
  const pool = new Pool(address.origin, {
    connections: null,
    pipelining: 1,
    headersTimeout: headersMs,
    bodyTimeout: silentMs,
    keepAliveTimeout: 30_000,
    connect: { timeout: connectMs },
  })
  // The key that the conductor was last seen to know: while keys are rotated it may not have been restarted yet.
  let known: SigningKey = 'CURRENT'
  const send = ({ tenantId, method, path, body, accept = 'application/json', signal }: Call, key: SigningKey) => {
    const target = prefix + path
    const headers = {
      ...signer.sign({ tenant: tenantId, method, target, body: body ?? nothing }, key),
      accept,
      ...(body ? { 'content-type': 'application/json' } : {}),
    }
    const request = { path: target, method, headers, ...(body ? { body } : {}) }
    return exchange(pool, request, { signal, lost: (cause) => new ConnectionLost(cause) })
  }
  return {
    async call(call) {
      const key = known
      const reply = await send(call, key)
      if (reply.status !== 401 || !signer.hasPreviousKey) return reply
      await readBody(reply.body, refusalBytes)
      const other = key === 'CURRENT' ? 'PREVIOUS' : 'CURRENT'
      const second = await send(call, other)
      if (second.status !== 401) known = other
      return second
    },
    close: () => pool.destroy(),
  }
}
