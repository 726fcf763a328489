import type { Database } from '#contracts/database'
import type { Prices } from '#contracts/prices'
import type { RunStore } from '#contracts/run-store'
import { createAsks } from './asks.ts'
import { appendStatement, type EndedRow, finishStatement, retryStatement, startRun } from './claims.ts'
import { createInstance, type InstanceOptions } from './instance.ts'
import { createOrphans, stealRun } from './orphans.ts'
import { claimNextRun, enqueueRun } from './queue.ts'
import { createReads } from './reads.ts'
import { createState } from './state.ts'
import { createStrays } from './strays.ts'
import { sweepQueues } from './waiting.ts'

export interface PostgresRunStoreOptions extends InstanceOptions {
  /** What the runs cost that are ended for somebody else; not known without. */
  readonly prices?: Prices | undefined
  readonly sweepMs: number
  /** How long a claimed run may be without anybody executing it, where that can be. */
  readonly strayMs?: number
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
  const waiters: Parameters<RunStore['onWaiting']>[0][] = []
  const onWanted = (tenantId: string, sessionId: string): void => {
    for (const waiter of waiters) waiter(tenantId, sessionId)
  }
  const asks = createAsks(db)
  const orphans = createOrphans(db, self, { onWanted, prices: options.prices, log: options.log })
  const starting = { db, owner: self, beat: () => instance.beat(), endOrphans: orphans.endOf }
  const steal: RunStore['steal'] = (tenantId, runId, status, reason) =>
    stealRun({ db, thief: self(), onWanted, prices: options.prices }, tenantId, runId, status, reason)
  const strays = createStrays(db, self, steal, options.strayMs)
  let timer: NodeJS.Timeout | undefined
  let sweeping: Promise<unknown> = Promise.resolve()
  const warn = (what: string) => (err: unknown) => options.log.warn({ err }, `${what} failed`)
  const listen = (): Promise<void> => asks.open().catch(warn('listening to other conductors'))
  const sweep = (): void => {
    sweeping = Promise.all([
      orphans.sweep().catch(warn('the orphan sweep')),
      sweepQueues(db, onWanted).catch(warn('the sweep of queues')),
      strays.sweep().catch(warn('the look for lost claims')),
      listen(),
    ])
  }
  return {
    ...createReads(db),
    ...createState(db),
    start: (run) => strays.watch(run.tenantId, startRun(starting, run)),
    async append(claim, chunk) {
      const { tenantId, sessionId } = claim
      const owned = await db.unit(tenantId, appendStatement(claim, chunk), {
        order: sessionId,
        bytes: chunk.lines.length,
      })
      return owned.length > 0
    },
    async retry(claim, attempt, chunk) {
      const { tenantId, sessionId } = claim
      const statement = retryStatement(claim, attempt, chunk)
      const owned = await db.unit(tenantId, statement, { order: sessionId, bytes: chunk.lines.length })
      return owned.length > 0
    },
    async finish(end) {
      const { tenantId, sessionId } = end.claim
      const [ended] = await db.unit<EndedRow>(tenantId, finishStatement(end), {
        order: sessionId,
        bytes: end.tail?.lines.length ?? 0,
      })
      if (ended?.waiting) onWanted(tenantId, sessionId)
      return ended !== undefined
    },
    steal,
    enqueue: (run) => enqueueRun(db, run),
    claimNext: (tenantId, sessionId) => strays.watch(tenantId, claimNextRun(db, self(), tenantId, sessionId)),
    onWaiting: (listener) => void waiters.push(listener),
    ask: (tenantId, runId, reason) => asks.ask(tenantId, runId, reason),
    onAsked: (listener) => asks.onAsked(listener),
    sweepOrphans: () => orphans.sweep(),
    onOrphan: (adopter) => orphans.handTo(adopter),
    onFenced: (listener) => instance.onFenced(listener),
    executing: (check) => strays.executing(check),
    async open() {
      await instance.open()
      await listen()
      sweep()
      timer = setInterval(sweep, options.sweepMs).unref()
    },
    async close() {
      clearInterval(timer)
      await sweeping
      await asks.close()
      await instance.close()
    },
  }
}
