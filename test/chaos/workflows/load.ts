import { setTimeout as sleep } from 'node:timers/promises'
import type { Random } from '../random.ts'
import type { Decision } from '../approvals.ts'
import type { Conductors } from './conductors.ts'

/** Between two workflows that clients begin. */
const gapMs = 250
/** So many are under way or paused at most: a slow machine has fewer of them, and not more and more that nobody can finish. */
const mostOpen = 100

/** A graph of up to 12 nodes: calls, branches, fan-outs, loops, waits and approvals, of which people decide some. */
function graph(random: Random, url: string): object[] {
  const count = 1 + Math.floor(random.next() * 12)
  return Array.from({ length: count }, (_, i) => {
    const before = Array.from({ length: i }, (_, j) => j).filter(() => random.chance(1.5 / count))
    const place = { id: `n${i}`, dependsOn: before.map((j) => `n${j}`) }
    const call = { type: 'http', method: 'POST', url }
    const kind = random.next()
    if (kind < 0.6)
      return { ...place, ...call, ...(random.chance(0.5) ? { retry: { max: 2, delaySeconds: 0.2 } } : {}) }
    if (kind < 0.7) return { ...place, type: 'wait', seconds: random.between(0, 3) }
    if (kind < 0.8) return { ...place, type: 'map', items: [1, 2, 3, 4, 5], concurrency: 2, node: call }
    if (kind < 0.9) return { ...place, type: 'loop', until: 'iteration >= 2', max: 5, node: call }
    if (kind < 0.93)
      return { ...place, ...call, concurrencyKey: `k${Math.floor(random.next() * 3)}`, concurrencyLimit: 2 }
    if (random.chance(0.5)) return { ...place, type: 'approval', message: 'Somebody is here.' }
    return { ...place, type: 'approval', message: 'Nobody is here.', expiresIn: 2, onExpiry: 'approve' }
  })
}

/** Clients that begin workflows, cancel some, and repair those that pause. */
export function startLoad(conductors: Conductors, url: string, random: Random, countOpen: () => Promise<number>) {
  const over = new AbortController()
  const work: Promise<unknown>[] = []
  /** What people were told to have decided. */
  const told: Decision[] = []
  let begun = 0
  let asking = 0
  const begin = async (nodes: object[], cancels: boolean): Promise<void> => {
    const { body } = await conductors.ask('POST', '/api/workflows/runs', { definition: { name: 'chaos', nodes } })
    if (!cancels) return
    await sleep(random.between(0, 2_000))
    await conductors.ask('POST', `/api/workflows/runs/${String(body['id'])}/cancel`)
  }
  const clients = (async () => {
    while (!over.signal.aborted) {
      if (asking < mostOpen && (await countOpen()) < mostOpen) {
        begun++
        asking++
        work.push(begin(graph(random, url), random.chance(0.1)).finally(() => asking--))
      }
      await sleep(random.between(0.3, 1.7) * gapMs)
    }
  })()
  const repairs = (async () => {
    while (!over.signal.aborted) {
      await repairAll(conductors)
      await decideAll(conductors, random, told)
      await sleep(1_000)
    }
  })()
  return {
    told,
    get begun() {
      return begun
    },
    async finish(): Promise<void> {
      over.abort()
      await Promise.all([clients, repairs])
      await Promise.all(work)
    },
  }
}

/** Decides all approvals that wait, some twice at once, and notes what was said to be decided: three of four are approved. */
export async function decideAll(conductors: Conductors, random: Random, told: Decision[]): Promise<void> {
  const { body } = await conductors.ask('GET', '/api/approvals?status=waiting&kind=node&limit=50')
  const decide = async (id: string): Promise<void> => {
    const approved = random.chance(0.75)
    const decision = approved ? 'approve' : 'reject'
    const { status } = await conductors.ask('POST', `/api/approvals/${id}/resolve`, { decision })
    if (status === 200) told.push({ id, approved })
  }
  const ids = (body as unknown as { id: string; message: string }[]).flatMap(({ id, message }) =>
    message === 'Nobody is here.' ? [] : random.chance(0.1) ? [id, id] : [id],
  )
  await Promise.all(ids.map(decide))
}

interface Snapshot {
  readonly id: string
  readonly nodes: readonly {
    readonly id: string
    readonly type: string
    readonly status: number
    readonly parent?: string
  }[]
}

/** Tries the failed nodes of all paused workflows again. */
export async function repairAll(conductors: Conductors): Promise<void> {
  const { body } = await conductors.ask('GET', '/api/workflows/runs?status=paused&limit=50')
  for (const { id } of body as unknown as Snapshot[]) {
    const run = (await conductors.ask('GET', `/api/workflows/runs/${id}`)).body as unknown as Snapshot
    for (const node of run.nodes.filter(({ status }) => status === 4)) {
      await conductors.ask('POST', `/api/workflows/runs/${id}/repair`, { action: 'retry_node', nodeId: node.id })
    }
  }
}

/** Schedules of every two seconds, of which one may overlap and one must not. */
export async function createSchedules(conductors: Conductors, url: string): Promise<string[]> {
  const nodes = [{ id: 'call', type: 'http', method: 'POST', url, retry: { max: 5, delaySeconds: 0.2 } }]
  const { body } = await conductors.ask('POST', '/api/workflows/definitions', { name: 'scheduled', nodes })
  const ids: string[] = []
  for (const overlap of ['allow', 'skip', 'queue']) {
    const schedule = { workflowDefinitionId: body['id'], cron: '*/2 * * * * *', overlap, catchUp: 'all' }
    const made = await conductors.ask('POST', '/api/workflows/schedules', schedule)
    ids.push(String(made.body['id']))
  }
  return ids
}
