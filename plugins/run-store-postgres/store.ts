import type { Database, Statement } from '#contracts/database'
import type { Prices } from '#contracts/prices'
import type { Claim, RunStore } from '#contracts/run-store'
import type { LogChunk } from '#contracts/runs'
import {
  appendStatement,
  discardStatement,
  type EndedRow,
  finishStatement,
  handOverStatement,
  retryStatement,
} from './ends.ts'
import { createInstance, createLostClaims, type InstanceOptions } from './instance.ts'
import { createOrphans } from './orphans.ts'
import { claimNextRun, enqueueRun, shutdownSession, sweepQueues } from './queue.ts'
import { createReads } from './reads.ts'
import { startRun } from './starts.ts'
import { createState } from './state.ts'

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
  const { prices, log } = options
  const instance = createInstance(db, options)
  const waiters: Parameters<RunStore['onWaiting']>[0][] = []
  const onWanted = (tenantId: string, sessionId: string): void => {
    for (const waiter of waiters) waiter(tenantId, sessionId)
  }
  const orphans = createOrphans({ db, instance, onWanted, prices, log })
  const lostClaims = createLostClaims(db, instance, orphans.steal, options.strayMs)
  let timer: NodeJS.Timeout | undefined
  let sweeping: Promise<unknown> = Promise.resolve()
  const warn = (what: string) => (err: unknown) => log.warn({ err }, `${what} failed`)
  const takeOver = (tenantId: string): void => void orphans.takeOver(tenantId).catch(warn('taking runs over'))
  const listen = (): Promise<void> => instance.listen(takeOver).catch(warn('listening to other conductors'))
  const sweep = (): void => {
    sweeping = Promise.all([
      orphans.sweep().catch(warn('the orphan sweep')),
      sweepQueues(db, onWanted).catch(warn('the sweep of queues')),
      lostClaims.sweep().catch(warn('the look for lost claims')),
      listen(),
    ])
  }
  /** A unit of work on a claimed run, which may free its session. False: the claim was lost. */
  const write = async ({ tenantId, sessionId }: Claim, statement: Statement, chunk?: LogChunk): Promise<boolean> => {
    const options = { order: sessionId, bytes: chunk?.lines.length ?? 0 }
    const [row] = await db.unit<Partial<EndedRow>>(tenantId, statement, options)
    if (row?.waiting) onWanted(tenantId, sessionId)
    return row !== undefined
  }
  return {
    ...createReads(db),
    ...createState(db),
    start: (run) => lostClaims.watch(run.tenantId, startRun({ db, instance, orphans }, run)),
    append: (claim, chunk) => write(claim, appendStatement(claim, chunk), chunk),
    retry: (claim, attempt, chunk) => write(claim, retryStatement(claim, attempt, chunk), chunk),
    finish: (end) => write(end.claim, finishStatement(end), end.tail),
    discard: (claim) => write(claim, discardStatement(claim)),
    handOver: (claim) => write(claim, handOverStatement(claim)),
    retreat: instance.retreat,
    steal: orphans.steal,
    enqueue: (run) => enqueueRun(db, run),
    shutdownSession: (tenantId, sessionId) => shutdownSession(db, tenantId, sessionId),
    claimNext: (tenantId, sessionId) => lostClaims.watch(tenantId, claimNextRun(db, instance.id, tenantId, sessionId)),
    onWaiting: (listener) => void waiters.push(listener),
    ask: instance.ask,
    onAsked: instance.onAsked,
    onFenced: instance.onFenced,
    sweepOrphans: orphans.sweep,
    onOrphan: orphans.giveTo,
    executing: lostClaims.executing,
    async open() {
      await instance.open()
      await listen()
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
