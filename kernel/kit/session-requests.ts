import type { FastifyReply, FastifyRequest } from 'fastify'
import { tenantKey } from '../contracts/ids.ts'
import { runnerErrors } from '../contracts/runner-errors.ts'
import { onceClosed } from '../http/streams.ts'
import { AtOnce } from './rate-limit.ts'

const mebi = 1024 * 1024

/**
 * A model writes no 4 MiB of calls in one answer, and calls at most 64 tools with it. The numbers of a tenant are far below its sessions times those
 * of each, because JSON takes up to twenty times its bytes once it is parsed.
 */
const most = {
  session: { requests: 128, bytes: 4 * mebi },
  tenant: { requests: 2_000, bytes: 32 * mebi },
} as const
const measures = ['requests', 'bytes'] as const

type Session = Readonly<Record<'tenantId' | 'sessionId', string>>
type Amounts = Readonly<Record<(typeof measures)[number], number>>

/** A request that counts until its connection has the answer or is closed, and everything that was begun for it has ended. */
interface SessionRequest {
  /** What goes on for the request, possibly after its caller has left. */
  until<T>(work: Promise<T>): Promise<T>
}

/**
 * Counts what sessions send to their runner, with the bytes of the bodies: these are in memory until they are answered, and whoever is in a sandbox
 * sends as many as it likes. Both are counted for the session, and for its tenant.
 */
export class SessionRequests {
  readonly #counts = { requests: new AtOnce(), bytes: new AtOnce() }

  /** Call it before the body is read. AppError 429 `too_many_session_requests`. */
  begin({ headers, routeOptions }: FastifyRequest, { raw }: FastifyReply, session: Session): SessionRequest {
    const { 'content-length': length, 'transfer-encoding': encoding } = headers
    // A body without a length counts as the largest one.
    const said = length === undefined ? (encoding === undefined ? 0 : Infinity) : Number(length)
    const end = this.#take(session, { requests: 1, bytes: Math.min(said, routeOptions.bodyLimit) })
    let open = 0
    const enter = (): (() => void) => {
      open++
      return () => {
        if (--open === 0) end()
      }
    }
    onceClosed(raw, enter())
    return { until: (work) => work.finally(enter()) }
  }

  #take({ tenantId, sessionId }: Session, amounts: Amounts): () => void {
    const owners = [
      { key: tenantKey(tenantId, sessionId), most: most.session },
      { key: tenantId, most: most.tenant },
    ]
    const counts = owners.flatMap(({ key, most }) =>
      measures.map((what) => ({ key, most: most[what], amount: amounts[what], counted: this.#counts[what] })),
    )
    if (counts.some(({ key, most, amount, counted }) => counted.of(key) + amount > most)) {
      throw runnerErrors.tooManySessionRequests({ headers: { 'retry-after': '1' } })
    }
    const ends = counts.map(({ key, amount, counted }) => counted.begin(key, amount))
    return () => ends.forEach((end) => end())
  }
}
