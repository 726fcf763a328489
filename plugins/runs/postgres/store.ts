import type { Database } from '#contracts/database'
import type { RunStore } from '#contracts/run-store'
import type { Charges } from './charges.ts'
import { createEnds, type EndedAt } from './ends.ts'
import { createInstance, type InstanceOptions } from './instance.ts'
import { createLostClaims } from './lost-claims.ts'
import { Orphans } from './orphans.ts'
import { createParkAgain, createParking } from './parking.ts'
import { createQueue } from './queue.ts'
import { createReads } from './reads.ts'
import { Rollups } from './rollups.ts'
import { createStarts } from './starts.ts'
import { createState } from './state.ts'
import { createTenantUse } from './use.ts'

export interface PostgresRunStoreOptions extends InstanceOptions, Partial<Charges> {
  readonly sweepMs: number
  /** Milliseconds that a claimed run may lack an executor before it counts as lost. */
  readonly strayMs?: number
}

export interface PostgresRunStore extends RunStore {
  /** Registers this process as an owner of claims and starts the sweeps for dead ones. */
  open(): Promise<void>
  /** Adds up the ended runs of a tenant now, `size` per transaction. A process also does so by itself after runs have ended. */
  rollUp(tenantId: string, size?: number): Promise<void>
  /** Signs this process off. Other processes sweep the runs that it still owns. */
  close(): Promise<void>
}

export function createPostgresRunStore(database: Database, options: PostgresRunStoreOptions): PostgresRunStore {
  const { prices, billing, log } = options
  const charges: Charges = { prices, billing }
  // Writes about claims have connections that no reader can take.
  const db = database.as('claims')
  const instance = createInstance(db, options)
  const waiters: Parameters<RunStore['onWaiting']>[0][] = []
  const onWanted = (tenantId: string, sessionId: string): void => {
    for (const waiter of waiters) waiter(tenantId, sessionId)
  }
  const orphans = new Orphans({ db, parkAgain: createParkAgain(db), instance, onWanted, charges, log })
  const steal: Orphans['steal'] = (...one) => orphans.steal(...one)
  const goOn: Orphans['goOn'] = (...one) => orphans.goOn(...one)
  const lostClaims = createLostClaims(db, instance, { steal, goOn }, options.strayMs)
  const { sweepQueues, ...queue } = createQueue({ db, instance, lostClaims, charges, onWanted })
  const endedAt: EndedAt = new Map()
  const rollups = new Rollups(database, { log, endedAt })
  let timer: NodeJS.Timeout | undefined
  let sweeping: Promise<unknown> = Promise.resolve()
  const warn = (what: string) => (err: unknown) => log.warn({ err }, `${what} failed`)
  const takeOver = (tenantId: string): void => void orphans.takeOver(tenantId).catch(warn('taking runs over'))
  const listen = (): Promise<void> => instance.listen(takeOver).catch(warn('listening to other conductors'))
  const sweep = (): void => {
    sweeping = Promise.all([
      orphans.sweep().catch(warn('the orphan sweep')),
      sweepQueues().catch(warn('the sweep of queues')),
      lostClaims.sweep().catch(warn('the look for lost claims')),
      listen(),
    ])
  }
  return {
    ...createReads(database),
    ...createState(database),
    ...createStarts({ db, instance, orphans, lostClaims, charges }),
    ...createEnds(db, charges, onWanted, endedAt),
    ...createTenantUse(db, database, instance),
    ...createParking({ db, instance, lostClaims, charges, onWanted }),
    ...queue,
    retreat: instance.retreat,
    steal,
    onWaiting: (listener) => void waiters.push(listener),
    requestEnd: instance.requestEnd,
    onEndRequested: instance.onEndRequested,
    onFenced: instance.onFenced,
    rollUp: (tenantId, size) => rollups.roll(tenantId, size),
    sweepOrphans: () => orphans.sweep(),
    onOrphan: (adopter) => orphans.giveTo(adopter),
    executing: lostClaims.executing,
    async open() {
      await instance.open()
      await listen()
      sweep()
      rollups.open()
      timer = setInterval(sweep, options.sweepMs).unref()
    },
    async close() {
      clearInterval(timer)
      await rollups.close()
      await sweeping
      await instance.close()
    },
  }
}
