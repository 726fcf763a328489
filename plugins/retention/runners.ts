import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { TenantTx } from '#contracts/database'
import { fleetErrors } from '#contracts/run-errors'
import type { Fleet } from '#contracts/runner'
import type { Batches, OutsideBatch } from './batches.ts'

/** Sessions of one page. The runners of all of them are asked at once, so that none is passed by because another one does not answer. */
const sessionsAtOnce = 16

/** SQL: an erasure whose first untold session is so long ago waits for no runner any more. */
export const isLate = `coalesce(untold_since < now() - interval '1 day', false)`

/** A session that is erased, and the runner that executed its last run. */
export interface LeftSession {
  readonly id: string
  readonly runner: string | null
}

/** Calls in a row that a runner has taken and not answered, after which it is not asked again. One may only be long. */
const mostSilent = 3

/** Runners that do not answer, as one request or one pass finds them: each is waited for once, and not for each person and tenant. */
export class Away {
  readonly #runners = new Map<string, { silent: number; answers: number }>()

  has(hash: string): boolean {
    return (this.#runners.get(hash)?.silent ?? 0) >= mostSilent
  }
  /** Asks a runner, and rejects as the call does. */
  async ask(hash: string, call: () => Promise<void>): Promise<void> {
    const runner = this.#runners.get(hash) ?? { silent: 0, answers: 0 }
    this.#runners.set(hash, runner)
    const { answers } = runner
    const hear = (): void => void Object.assign(runner, { silent: 0, answers: runner.answers + 1 })
    try {
      await call()
      hear()
    } catch (err) {
      if (isAppError(err) && err.retryable) runner.silent = mostSilent
      else if (!isAppError(err) || err.code !== fleetErrors.runnerUnreachable.row.code) hear()
      // If it has answered others meanwhile, it is there, and this call took too long.
      else if (runner.answers === answers) runner.silent++
      throw err
    }
  }
}

export interface Runners {
  /** Undefined in a role without runners: then there are no other copies of sessions. */
  readonly fleet: Pick<Fleet, 'owner'> | undefined
  readonly batches: Batches
  readonly away: Away
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

/**
 * Tells runners to delete their copies of sessions, with their sandboxes. Resolves to the sessions of which that failed: their runner keeps its copy
 * until it needs the room or restarts; no run can start in the session again. A runner that this conductor does not know any more is left out.
 */
async function tellRunners(
  { fleet, away, log }: Runners,
  tenantId: string,
  sessions: readonly LeftSession[],
  until?: AbortSignal,
): Promise<ReadonlySet<string>> {
  const untold = new Set<string>()
  const cut = until ? [cutBy(until)] : []
  const tell = async ({ id, runner }: LeftSession): Promise<void> => {
    const link = fleet?.owner(id, runner ?? undefined)
    if (!link) return
    try {
      if (!away.has(link.hash))
        return await away.ask(link.hash, () => Promise.race([link.deleteSession(tenantId, id, until), ...cut]))
    } catch (err) {
      log.warn({ err, sessionId: id }, 'a runner could not be told that a session is erased')
    }
    untold.add(id)
  }
  await Promise.all(sessions.map(tell))
  return untold
}

/** Rejects when the signal aborts: a runner has then taken a call and not answered it. */
function cutBy(until: AbortSignal): Promise<never> {
  const { promise, reject } = Promise.withResolvers<never>()
  promise.catch(() => {})
  const cut = (): void => reject(fleetErrors.runnerUnreachable({ cause: until.reason, retryable: false }))
  until.addEventListener('abort', cut, { once: true })
  return promise
}

/** The sessions of an erasure. */
export interface Leaving {
  /** No runner is waited for any more: what it was not told of goes as well. */
  readonly late: boolean
  /** The next sessions in the order of ids. */
  page(tx: TenantTx, after: string, limit: number): Promise<LeftSession[]>
  /** Deletes sessions, and resolves to how many there were. `untold`: of how many of them a runner may have a copy. */
  drop(tx: TenantTx, ids: readonly string[], untold: number): Promise<number>
}

/**
 * Deletes a deleted tenant's sessions, each after its runner was told, so that a walk that is cut off goes on where it was. Resolves to how many runners
 * were not told of, because they did not answer. The tenant's row is locked meanwhile, so no runner is told any more when a legal hold was answered;
 * who has not answered after a few seconds is not waited for.
 */
export async function leaveRunners(
  parts: Runners,
  tenantId: string,
  leaving: Leaving,
  signal: AbortSignal,
): Promise<number> {
  let untold = 0
  const some: OutsideBatch = async (tx, most, place, ask) => {
    const limit = Math.min(most, sessionsAtOnce)
    const found = await leaving.page(tx, place?.[0] ?? '', limit)
    const left = await ask((until) => tellRunners(parts, tenantId, found, until))
    untold += left.size
    const deleted = await dropTold(tx, leaving, found, left)
    return { deleted: { sessions: deleted }, next: found.length < limit ? undefined : [found.at(-1)!.id] }
  }
  await parts.batches.outside(tenantId, 'runners', some, signal)
  return untold
}

/**
 * As `leaveRunners`, for some sessions of a tenant that goes on. Nothing is locked while runners are asked: whoever writes a profile would wait for a
 * runner that does not answer.
 */
export async function leaveApart(
  parts: Runners,
  tenantId: string,
  leaving: Leaving,
  signal: AbortSignal,
): Promise<number> {
  const { batches } = parts
  let untold = 0
  for (let after = '', found: LeftSession[]; ; after = found.at(-1)!.id) {
    signal.throwIfAborted()
    found = await batches.once(tenantId, (tx) => leaving.page(tx, after, sessionsAtOnce))
    if (found.length === 0) return untold
    const left = await tellRunners(parts, tenantId, found)
    untold += left.size
    await batches.once(tenantId, (tx) => dropTold(tx, leaving, found, left))
  }
}

async function dropTold(
  tx: TenantTx,
  { late, drop }: Leaving,
  found: readonly LeftSession[],
  left: ReadonlySet<string>,
): Promise<number> {
  const gone = found.flatMap(({ id }) => (left.has(id) && !late ? [] : [id]))
  return gone.length === 0 ? 0 : drop(tx, gone, late ? left.size : 0)
}
