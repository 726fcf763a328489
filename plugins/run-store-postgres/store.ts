import type { Database } from '#contracts/database'
import type { RunStore } from '#contracts/run-store'
import { appendStatement, finishStatement, startRun } from './claims.ts'
import { createInstance, type InstanceOptions } from './instance.ts'
import { createOrphans, stealRun } from './orphans.ts'
import { createReads } from './reads.ts'
import { createState } from './state.ts'

export interface PostgresRunStoreOptions extends InstanceOptions {
  readonly sweepMs: number
}

export interface PostgresRunStore extends RunStore {
  /** Registers this process as an owner and begins to look for dead ones. */
  open(): Promise<void>
  /** Gives the instance up: what it still claims is for others to sweep. */
  close(): Promise<void>
}

export function createPostgresRunStore(db: Database, options: PostgresRunStoreOptions): PostgresRunStore {
  const instance = createInstance(db, options)
  const self = (): string => instance.id
  const orphans = createOrphans(db, self, options.log)
  const starting = { db, owner: self, beat: () => instance.beat(), endOrphans: orphans.endOf }
  let timer: NodeJS.Timeout | undefined
  let sweeping: Promise<unknown> = Promise.resolve()
  const sweep = (): void => {
    sweeping = orphans.sweep().catch((err: unknown) => options.log.warn({ err }, 'the orphan sweep failed'))
  }
  return {
    ...createReads(db),
    ...createState(db),
    start: (run) => startRun(starting, run),
    async append(claim, chunk) {
      const { tenantId, sessionId } = claim
      const owned = await db.unit(tenantId, appendStatement(claim, chunk), {
        order: sessionId,
        bytes: chunk.lines.length,
      })
      return owned.length > 0
    },
    async finish(end) {
      const { tenantId, sessionId } = end.claim
      const ended = await db.unit(tenantId, finishStatement(end), {
        order: sessionId,
        bytes: end.tail?.lines.length ?? 0,
      })
      return ended.length > 0
    },
    steal: (tenantId, runId, status, reason) => stealRun(db, self(), tenantId, runId, status, reason),
    sweepOrphans: () => orphans.sweep(),
    onFenced: (listener) => instance.onFenced(listener),
    async open() {
      await instance.open()
      sweep()
      timer = setInterval(sweep, options.sweepMs).unref()
    },
    async close() {
      clearInterval(timer)
      await sweeping
      await instance.close()
    },
  }
}
