import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { keysUsed } from './agents.store.ts'
import { markRunning } from './runs.store.ts'
import type { Watcher, Watchers } from './watchers.ts'

/** A run that ends sooner never needs to be noted as running. */
const markAfterMs = 1_000
const everyMs = 1_000

interface Dependencies {
  readonly database: Database
  readonly watchers: Watchers
  readonly log: FastifyBaseLogger
}

export interface Notes {
  keyUsed(tenantId: string, keyId: string): void
  /** Writes what was noted, one transaction per tenant. */
  flush(now?: number): Promise<void>
  start(): void
  stop(): Promise<void>
}

/** Facts that may reach the database a second late: which runs are under way, and which keys were used. One timer for all. */
export function createNotes({ database, watchers, log }: Dependencies): Notes {
  const marked = new WeakSet<Watcher>()
  const keys = new Map<string, Set<string>>()
  let timer: NodeJS.Timeout | undefined
  let flushing: Promise<void> = Promise.resolve()

  const markRuns = async (now: number): Promise<void> => {
    const due = Map.groupBy(
      [...watchers].filter((w) => w.sessionId !== undefined && !marked.has(w) && now - w.since >= markAfterMs),
      (watcher) => JSON.stringify([watcher.tenantId, watcher.owner]),
    )
    for (const group of due.values()) {
      const { tenantId, owner } = group[0]!
      await markRunning(
        database,
        tenantId,
        owner,
        group.map(({ publicRunId, sessionId }) => ({ publicRunId, sessionId: sessionId! })),
      )
      for (const watcher of group) marked.add(watcher)
    }
  }
  const recordKeys = async (): Promise<void> => {
    const used = [...keys]
    keys.clear()
    for (const [tenantId, ids] of used) await keysUsed(database, tenantId, [...ids])
  }
  const flush = async (now = performance.now()): Promise<void> => {
    try {
      await markRuns(now)
      await recordKeys()
    } catch (err) {
      log.warn({ err }, 'notes on running runs and used keys could not be written')
    }
  }

  return {
    keyUsed(tenantId, keyId) {
      const used = keys.get(tenantId)
      if (used) used.add(keyId)
      else keys.set(tenantId, new Set([keyId]))
    },
    flush,
    start() {
      let busy = false
      timer = setInterval(() => {
        if (busy) return
        busy = true
        flushing = flush().finally(() => {
          busy = false
        })
      }, everyMs).unref()
    },
    async stop() {
      clearInterval(timer)
      await flushing
      await flush()
    },
  }
}
