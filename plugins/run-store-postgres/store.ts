import type { Database } from '#contracts/database'
import type { Prices } from '#contracts/prices'
import type { Claim, RunStore } from '#contracts/run-store'
import { appendStatement, discardStatement, type EndedRow, finishStatement, retryStatement } from './ends.ts'
import { createInstance, type InstanceOptions } from './instance.ts'
import { createLostClaims } from './lost-claims.ts'
import { createOrphans } from './orphans.ts'
import { readPastRuns } from './past-runs.ts'
import { claimNextRun, enqueueRun, sweepQueues } from './queue.ts'
import { createReads } from './reads.ts'
import { createSignals, handOverStatement } from './signals.ts'
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
  const self = (): string => instance.id
  const waiters: Parameters<RunStore['onWaiting']>[0][] = []
  const onWanted = (tenantId: string, sessionId: string): void => {
    for (const waiter of waiters) waiter(tenantId, sessionId)
  }
  const signals = createSignals(db)
  const orphans = createOrphans({ db, self, onWanted, prices, log })
  const starting = { db, owner: self, beat: () => instance.beat(), endOrphans: orphans.endOf }
  const lostClaims = createLostClaims(db, self, orphans.steal, options.strayMs)
  let timer: NodeJS.Timeout | undefined
  let sweeping: Promise<unknown> = Promise.resolve()
  const warn = (what: string) => (err: unknown) => log.warn({ err }, `${what} failed`)
  const takeOver = (tenantId: string): void => void orphans.takeOver(tenantId).catch(warn('taking runs over'))
  const listen = (): Promise<void> => signals.open(takeOver).catch(warn('listening to other conductors'))
  const sweep = (): void => {
    sweeping = Promise.all([
      orphans.sweep().catch(warn('the orphan sweep')),
      sweepQueues(db, onWanted).catch(warn('the sweep of queues')),
      lostClaims.sweep().catch(warn('the look for lost claims')),
      listen(),
    ])
  }
  /** A unit of work on a claimed run; undefined: the claim was lost. */
  const claimed = async <Row extends object>(
    { tenantId, sessionId }: Claim,
    statement: Parameters<Database['unit']>[1],
    bytes = 0,
  ): Promise<Row | undefined> => {
    const [row] = await db.unit<Row>(tenantId, statement, { order: sessionId, bytes })
    return row
  }
  /** The same of one that frees its session. */
  const freeing = async (claim: Claim, statement: Parameters<Database['unit']>[1], bytes = 0): Promise<boolean> => {
    const ended = await claimed<EndedRow>(claim, statement, bytes)
    if (ended?.waiting) onWanted(claim.tenantId, claim.sessionId)
    return ended !== undefined
  }
  return {
    ...createReads(db),
    ...createState(db),
    pastRuns: (claim) => readPastRuns(db, claim),
    start: (run) => lostClaims.watch(run.tenantId, startRun(starting, run)),
    append: async (claim, chunk) =>
      (await claimed(claim, appendStatement(claim, chunk), chunk.lines.length)) !== undefined,
    retry: async (claim, attempt, chunk) =>
      (await claimed(claim, retryStatement(claim, attempt, chunk), chunk.lines.length)) !== undefined,
    finish: (end) => freeing(end.claim, finishStatement(end), end.tail?.lines.length),
    discard: (claim) => freeing(claim, discardStatement(claim)),
    handOver: async (claim) =>
      (await claimed(claim, handOverStatement({ tenant: claim.tenantId, run: claim.runId, epoch: claim.epoch }))) !==
      undefined,
    retreat: () => instance.retreat(),
    steal: orphans.steal,
    enqueue: (run) => enqueueRun(db, run),
    claimNext: (tenantId, sessionId) => lostClaims.watch(tenantId, claimNextRun(db, self(), tenantId, sessionId)),
    onWaiting: (listener) => void waiters.push(listener),
    ask: (tenantId, runId, reason) => signals.ask(tenantId, runId, reason),
    onAsked: (listener) => signals.onAsked(listener),
    sweepOrphans: () => orphans.sweep(),
    onOrphan: (adopter) => orphans.giveTo(adopter),
    onFenced: (listener) => instance.onFenced(listener),
    executing: (check) => lostClaims.executing(check),
    async open() {
      await instance.open()
      await listen()
      sweep()
      timer = setInterval(sweep, options.sweepMs).unref()
    },
    async close() {
      clearInterval(timer)
      await sweeping
      await signals.close()
      await instance.close()
    },
  }
}
