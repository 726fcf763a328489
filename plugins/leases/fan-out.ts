import type { FastifyBaseLogger } from 'fastify'
import type { RunnerLink, RunnerPool } from '#contracts/runner'

/** How long the runners together may take: who has not answered by then is left out. Specification 4.7. */
const windowMs = 2_000

interface Lease {
  readonly sessionId: string
}

/**
 * Asks every runner that is not away, and merges what comes within the window, sorted by session. A session that two
 * runners name, because one of them has an old copy, is shown once: as the runner has it that comes first in the registry.
 */
export async function fanOut<T extends Lease>(
  pool: Pick<RunnerPool, 'all' | 'fleet'>,
  ask: (link: RunnerLink, signal: AbortSignal) => Promise<readonly T[]>,
  log: Pick<FastifyBaseLogger, 'warn'>,
  ms = windowMs,
): Promise<T[]> {
  const links = pool.all()
  const present = pool.fleet().flatMap((member, i) => (member.state === 'unreachable' ? [] : [links[i]!]))
  const signal = AbortSignal.timeout(ms)
  const answers = await Promise.all(
    present.map((link) =>
      within(ask(link, signal), signal).catch((err: unknown) => {
        log.warn({ err, runner: link.hash }, 'a runner did not list its leases')
        return []
      }),
    ),
  )
  const bySession = new Map<string, T>()
  for (const lease of answers.flat()) if (!bySession.has(lease.sessionId)) bySession.set(lease.sessionId, lease)
  return [...bySession.values()].toSorted((a, b) => (a.sessionId < b.sessionId ? -1 : 1))
}

/** Rejects when the signal aborts, whether or not the one who was asked looks at it. */
const within = <T>(answer: Promise<T>, signal: AbortSignal): Promise<T> =>
  new Promise((resolve, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true })
    answer.then(resolve, reject)
  })
