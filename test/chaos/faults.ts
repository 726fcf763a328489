import { setTimeout as sleep } from 'node:timers/promises'
import type { Cluster } from './cluster.ts'
import type { Orphans } from './orphans.ts'
import { type Name, type Scheduled, sentence } from './schedule.ts'
import type { Servers } from './servers.ts'

interface Dependencies {
  readonly cluster: Cluster
  readonly servers: Servers
  readonly orphans: Orphans
  readonly say: (text: string) => void
}

/** Runs a schedule; resolves when every fault is over and every part was started again. */
export async function injectFaults(faults: readonly Scheduled[], deps: Dependencies): Promise<void> {
  const began = performance.now()
  const problems: unknown[] = []
  // On a slow machine a process may still be starting when its next fault is due. Then the fault waits.
  const turns = new Map<string, Promise<void>>()
  const inTurn = (part: string, work: () => Promise<void>): Promise<void> => {
    const turn = (turns.get(part) ?? Promise.resolve()).then(work)
    turns.set(
      part,
      turn.catch(() => {}),
    )
    return turn
  }
  await Promise.all(
    faults.map(async (fault) => {
      await sleep(Math.max(0, fault.atMs - (performance.now() - began)))
      deps.say(`${(fault.atMs / 1_000).toFixed(1).padStart(6)} s  ${sentence(fault)}`)
      try {
        await inTurn('store' in fault ? fault.store : fault.on, () => inject(fault, deps))
      } catch (error) {
        problems.push(error)
      }
    }),
  )
  if (problems.length > 0) throw new AggregateError(problems, 'faults could not be injected')
}

/** The longest time in which a stopping process may still be there; its own grace is 25 s. */
const goneMs = 30_000

async function inject(fault: Scheduled, { cluster, servers, orphans, say }: Dependencies): Promise<void> {
  const { forMs } = fault
  if (fault.kind === 'restart') {
    const end = orphans.storeAway('all', fault.store)
    if (fault.store === 'postgres') {
      await servers.stopPostgres()
      await sleep(forMs)
      await servers.startPostgres()
    } else {
      await servers.stopRedis()
      await sleep(forMs)
      await servers.startRedis()
    }
    return end()
  }
  if ('store' in fault) {
    const ways = cluster.ways(fault.store, fault.on)
    const end = fault.kind === 'slow' ? () => {} : orphans.storeAway(fault.on, fault.store)
    for (const way of ways) {
      if (fault.kind === 'cut') way.cut()
      if (fault.kind === 'hang') way.hang()
      if (fault.kind === 'slow') way.delay(fault.delayMs)
    }
    await sleep(forMs)
    for (const way of ways) way.heal()
    return end()
  }
  const { on } = fault
  const away = orphans.processAway(on)
  if (fault.kind === 'freeze') {
    cluster.kill(on, 'SIGSTOP')
    const settled = orphans.ownerDied(on, 'frozen', forMs)
    await sleep(forMs)
    cluster.kill(on, 'SIGCONT')
    await settled
    return away()
  }
  if (fault.kind === 'kill') {
    cluster.kill(on, 'SIGKILL')
    await cluster.gone(on)
    await orphans.ownerDied(on, 'killed', forMs)
  } else {
    cluster.kill(on, 'SIGTERM')
    const late = new AbortController()
    await Promise.race([cluster.gone(on), sleep(goneMs, undefined, { signal: late.signal }).catch(() => {})])
    late.abort()
    if (cluster.isUp(on)) {
      orphans.stuck.push(`${on} was still there ${goneMs / 1_000} s after SIGTERM`)
      cluster.kill(on, 'SIGKILL')
      await cluster.gone(on)
    }
  }
  await sleep(forMs)
  await start(cluster, on, say)
  away()
}

/** Starts a process, again when it fails, as its supervisor would. */
async function start(cluster: Cluster, on: Name, say: (text: string) => void): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await cluster.start(on)
    } catch (error) {
      say(`!! ${(error as Error).message}`)
      if (attempt === 3) throw error
      await sleep(500)
    }
  }
}
