import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { ReadinessCheck } from '#contracts/health'

/** A part that does not answer in time cannot serve a request either. */
const timeoutMs = 3_000
/** An answer is good for this long: `/readyz` is open to everybody, and must not become a load on what it asks. */
const keptMs = 1_000

export interface Readiness {
  readonly ready: boolean
  /** `ok`, or what is wrong, by the name of the check. A part that is only degraded is named here and leaves the process ready. */
  readonly checks: Readonly<Record<string, string>>
}

/** Runs all checks at once. Probes that come meanwhile or within a second share the answer, so that checks of a hanging database do not pile up. */
export function createReadiness(
  checks: ReadonlyMap<string, ReadinessCheck>,
  stopping: AbortSignal,
  log: FastifyBaseLogger,
): () => Promise<Readiness> {
  let running: Promise<Readiness> | undefined
  let wasReady = true
  const run = async (): Promise<Readiness> => {
    const results = await Promise.all(
      [...checks].map(async ([name, check]) => ({ name, ...(await outcome(check, log)) })),
    )
    const ready = results.every(({ serves }) => serves)
    const said = Object.fromEntries(results.map(({ name, says }) => [name, says]))
    if (ready !== wasReady) log.warn({ checks: said }, ready ? 'ready again' : 'not ready')
    wasReady = ready
    return { ready, checks: said }
  }
  return async () => {
    if (stopping.aborted) return { ready: false, checks: { process: 'stopping' } }
    running ??= run().finally(() => {
      setTimeout(() => (running = undefined), keptMs).unref()
    })
    const answer = await running
    return stopping.aborted ? { ready: false, checks: { process: 'stopping' } } : answer
  }
}

interface Outcome {
  readonly serves: boolean
  readonly says: string
}

async function outcome(check: ReadinessCheck, log: FastifyBaseLogger): Promise<Outcome> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<Outcome>((resolve) => {
    timer = setTimeout(resolve, timeoutMs, { serves: false, says: `no answer in ${timeoutMs / 1_000} s` })
  })
  try {
    return await Promise.race([check().then((says) => ({ serves: true, says: says ?? 'ok' })), late])
  } catch (err) {
    log.debug({ err }, 'readiness check failed')
    // The text of an unknown exception may hold addresses; `/readyz` is open to everybody.
    return { serves: false, says: isAppError(err) ? (err.sentence ?? err.code) : 'failed' }
  } finally {
    clearTimeout(timer)
  }
}
