import type { FastifyBaseLogger, FastifyRequest } from 'fastify'
import type { App } from '../http/app.ts'
import { streamsOf } from '../http/streams.ts'

/** Something that stays open only while a key is valid: a stream, or a waiting request. */
export interface Held {
  readonly tenantId: string
  readonly keyId: string
  /** Ends it, because its key is no longer valid. */
  end(): void
}

interface KeyWatchOptions {
  /** Everything that is currently open in this process. */
  held(): Iterable<Held>
  /** Returns those of a tenant's keys that are still valid. */
  alive(tenantId: string, keyIds: readonly string[]): Promise<readonly string[]>
  readonly log: Pick<FastifyBaseLogger, 'info' | 'warn'>
}

/** Milliseconds. Together with the half second that a stream gets to end, this keeps within the two seconds in which a revocation must take effect. */
const lookEveryMs = 1_000
/** How many keys one statement checks. */
const atOnce = 1_000

/**
 * Ends open streams and requests when their key becomes invalid for any reason: revocation, expiry, or deletion of the tenant, by any process or by
 * hand in the database. Once a second it checks the keys of everything that is open, each key once; while nothing is open it queries nothing. While
 * the database does not answer, open streams stay open: no new caller could be authenticated, and nothing is known against the present ones.
 */
export class KeyWatch {
  readonly #options: KeyWatchOptions
  #timer: NodeJS.Timeout | undefined
  #looking: Promise<void> | undefined
  #failing = false

  constructor(options: KeyWatchOptions) {
    this.#options = options
  }

  start(): void {
    this.#timer = setInterval(() => void this.look(), lookEveryMs).unref()
  }
  async stop(): Promise<void> {
    clearInterval(this.#timer)
    await this.#looking
  }

  /** Checks now, or joins the check under way. Never rejects. */
  look(): Promise<void> {
    return (this.#looking ??= this.#look().finally(() => (this.#looking = undefined)))
  }

  async #look(): Promise<void> {
    const { held, log } = this.#options
    const tenants = new Map<string, Map<string, Held[]>>()
    for (const one of held()) {
      const keys = tenants.get(one.tenantId) ?? new Map<string, Held[]>()
      if (keys.size === 0) tenants.set(one.tenantId, keys)
      const those = keys.get(one.keyId)
      if (those) those.push(one)
      else keys.set(one.keyId, [one])
    }
    try {
      // Check all tenants concurrently, so that their units share a round trip.
      await Promise.all([...tenants].map(([tenantId, keys]) => this.#end(tenantId, keys)))
      this.#failing = false
    } catch (err) {
      if (!this.#failing) log.warn({ err }, 'the keys of open streams cannot be checked; the streams stay open')
      this.#failing = true
    }
  }

  async #end(tenantId: string, keys: ReadonlyMap<string, readonly Held[]>): Promise<void> {
    const { alive, log } = this.#options
    const ids = [...keys.keys()]
    for (let i = 0; i < ids.length; i += atOnce) {
      const asked = ids.slice(i, i + atOnce)
      const valid = new Set(await alive(tenantId, asked))
      for (const id of asked) {
        if (valid.has(id)) continue
        const those = keys.get(id)!
        log.info(
          { tenant: tenantId, key: id, ended: those.length },
          'a key is not valid any more; its open streams are closed',
        )
        for (const one of those) one.end()
      }
    }
  }
}

/** The open streams of the listeners of some scopes, if their callers are known. */
export function* heldStreams(
  scopes: readonly App[],
  callerOf: (request: FastifyRequest) => Pick<Held, 'tenantId' | 'keyId'> | undefined | null,
): Generator<Held> {
  for (const streams of new Set(scopes.map(streamsOf))) {
    for (const stream of streams.all()) {
      const caller = stream.request && callerOf(stream.request)
      if (!caller || stream.abort.signal.aborted) continue
      const { tenantId, keyId } = caller
      yield { tenantId, keyId, end: () => streams.revoke(stream) }
    }
  }
}
