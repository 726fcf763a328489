import type { FastifyBaseLogger } from 'fastify'
import type { Claim, RunStore } from '#contracts/run-store'
import type { RunnerLink } from '#contracts/runner'

/** A session that rests this long is saved: a conversation under way would be saved again after each answer. */
const restMs = 1_000
const concurrency = 4
/** Sessions waiting to be saved; beyond it the oldest are only as safe as their runner. */
const maxWaiting = 50_000

interface Waiting {
  readonly tenantId: string
  readonly sessionId: string
  readonly link: RunnerLink
  /** Of the last claim that this process knows of; unless it executed the session's last run, the store is asked. */
  readonly epoch: number | undefined
  readonly due: number
}

/** Copies the conversations of resting sessions from their runners to the store, behind everything else. */
export interface StateSaver {
  /** The run of this claim ended, and the session rests on this runner. */
  rest(claim: Claim, link: RunnerLink): void
  /** A run of the session began: what is exported now would be half a turn. Returns the runner it would have been exported from. */
  busy(tenantId: string, sessionId: string): RunnerLink | undefined
  /** Saves at once what a runner that is about to stop still has to itself, whichever conductor brought it there. Never rejects. */
  evacuate(link: RunnerLink): Promise<void>
  /** Saves what waits, now; for a graceful stop. */
  drain(): Promise<void>
}

export function createStateSaver(store: RunStore, log: FastifyBaseLogger, delayMs = restMs): StateSaver {
  // In order of `due`, because every session waits equally long.
  const waiting = new Map<string, Waiting>()
  const saving = new Map<string, Promise<void>>()
  let timer: NodeJS.Timeout | undefined
  let draining = false
  const keyOf = (tenantId: string, sessionId: string): string => `${tenantId}\n${sessionId}`

  const save = async ({ tenantId, sessionId, link, epoch }: Waiting): Promise<void> => {
    try {
      // Before the export: a run that comes in between raises it, and the store refuses what is half a turn.
      const known = epoch ?? (await store.findSession(tenantId, sessionId))?.epoch
      if (known === undefined) return
      const bundle = await link.exportState(tenantId, sessionId)
      if (bundle) await store.saveState(tenantId, sessionId, bundle, { runner: link.hash, epoch: known })
    } catch (err) {
      // The next run of the session brings another chance; until then its runner still has the conversation.
      log.warn({ err, sessionId }, 'the state of a session could not be saved')
    }
  }
  const pump = (): void => {
    clearTimeout(timer)
    timer = undefined
    for (const [key, entry] of waiting) {
      const wait = entry.due - Date.now()
      if (!draining && wait > 0) {
        timer = setTimeout(pump, wait).unref()
        return
      }
      if (saving.size >= concurrency) return
      // An older export of the same session is still on its way: it must not arrive after the newer one.
      if (saving.has(key)) continue
      waiting.delete(key)
      saving.set(
        key,
        save(entry).finally(() => {
          saving.delete(key)
          pump()
        }),
      )
    }
  }
  return {
    rest({ tenantId, sessionId, epoch }, link) {
      const key = keyOf(tenantId, sessionId)
      waiting.delete(key)
      waiting.set(key, { tenantId, sessionId, link, epoch, due: Date.now() + delayMs })
      if (waiting.size > maxWaiting) waiting.delete(waiting.keys().next().value!)
      if (timer === undefined) pump()
    },
    busy(tenantId, sessionId) {
      const key = keyOf(tenantId, sessionId)
      const link = waiting.get(key)?.link
      waiting.delete(key)
      return link
    },
    async evacuate(link) {
      const unsaved = await link.unsaved().catch((err: unknown) => {
        log.warn({ err, runner: link.hash }, 'a stopping runner did not say which sessions are unsaved')
        return []
      })
      const later = [...waiting]
      waiting.clear()
      for (const { tenantId, sessionId } of unsaved) {
        const key = keyOf(tenantId, sessionId)
        if (!saving.has(key)) waiting.set(key, { tenantId, sessionId, link, epoch: undefined, due: 0 })
      }
      for (const [key, entry] of later) if (!waiting.has(key)) waiting.set(key, entry)
      pump()
    },
    async drain() {
      draining = true
      pump()
      while (saving.size > 0) await Promise.race(saving.values())
    },
  }
}
