import pg from 'pg'
import type { Decision } from '../approvals.ts'
import type { Effect } from './effects.ts'

async function ask<T>(dsn: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    await client.query("SELECT set_config('app.tenant_id', 'default', false)")
    return await work(client)
  } finally {
    await client.end()
  }
}

/** Workflows under way or paused. */
export const countOpen = (dsn: string): Promise<number> =>
  ask(dsn, async (client) => {
    const { rows } = await client.query<{ count: number }>(
      'SELECT count(*)::int AS count FROM workflow_runs WHERE status < 3',
    )
    return rows[0]!.count
  })

interface Node {
  readonly run_id: string
  readonly id: string
  readonly type: string
  readonly status: number
  readonly run_status: number
  readonly parts: number
}

/** Holds everything on record against everything that was done. */
export function check(dsn: string, effects: readonly Effect[], told: readonly Decision[]) {
  return ask(dsn, async (client) => {
    const problems: string[] = []
    const { rows: nodes } = await client.query<Node>(
      `SELECT n.run_id, n.id, n.type, n.status, r.status AS run_status,
         (SELECT count(*)::int FROM workflow_nodes p WHERE p.tenant_id = n.tenant_id AND p.run_id = n.run_id AND p.parent = n.id) AS parts
       FROM workflow_nodes n JOIN workflow_runs r ON r.tenant_id = n.tenant_id AND r.id = n.run_id`,
    )
    const done = new Map<string, Effect[]>()
    const once = new Set<string>()
    for (const effect of effects) {
      const [run, node] = effect.key.split('/') as [string, string]
      const attempt = `${run}/${node} attempt ${effect.attempt}`
      if (once.has(attempt)) problems.push(`${attempt} had its effect twice`)
      once.add(attempt)
      done.set(`${run}/${node}`, [...(done.get(`${run}/${node}`) ?? []), effect])
    }
    for (const node of nodes) problems.push(...wrongWith(node, done))
    problems.push(...(await disorder(client, done)), ...(await firings(client)), ...(await approvals(client, told)))
    const count = (status: number): number =>
      new Set(nodes.filter((one) => one.run_status === status).map((one) => one.run_id)).size
    const { rows } = await client.query<{ outcome: string; count: string }>(
      'SELECT outcome, count(*) FROM workflow_firings GROUP BY 1 ORDER BY 1',
    )
    return {
      problems,
      figures: {
        'workflows completed, cancelled': `${count(3)}, ${count(5)}`,
        nodes: String(nodes.length),
        'effects, of them made again under their key': `${effects.length}, ${effects.length - new Set(effects.map(({ key }) => key)).size}`,
        'approvals, by people': `${await approvalCount(client)}, ${told.length}`,
        'times of schedules': rows.map((one) => `${one.count} ${one.outcome}`).join(', '),
      },
    }
  })
}

const approvalCount = async (client: pg.Client): Promise<number> =>
  (await client.query<{ count: number }>('SELECT count(*)::int AS count FROM approvals')).rows[0]!.count

/** A completed run has nothing open, and what is said to be done was done. */
function* wrongWith({ run_id, id, type, status, run_status, parts }: Node, done: ReadonlyMap<string, Effect[]>) {
  const name = `${run_id}/${id}`
  if (run_status === 3 && status !== 3) yield `${name} has status ${status} in a run that is completed`
  if (run_status > 3 && status < 3) yield `${name} has status ${status} in a run that is over`
  if (type === 'http' && status === 3 && !done.get(name)?.some(({ ok }) => ok))
    yield `${name} is ok, and was never done`
  if (type === 'map' && status === 3 && parts !== 5) yield `${name} has ${parts} parts`
  if (type === 'loop' && status === 3 && parts !== 3) yield `${name} went ${parts} times`
}

/** Nothing waits any more, a node is ok by one approval, and what people were told is what happened. */
async function approvals(client: pg.Client, told: readonly Decision[]): Promise<string[]> {
  const { rows: known } = await client.query<{ id: string; status: string }>('SELECT id, status FROM approvals')
  const { rows: nodes } = await client.query<{ name: string; status: number; approved: number; waiting: number }>(
    `SELECT n.run_id || '/' || n.id AS name, n.status, (count(a.id) FILTER (WHERE a.status = 'approved'))::int AS approved,
       (count(a.id) FILTER (WHERE a.status = 'waiting'))::int AS waiting
     FROM workflow_nodes n LEFT JOIN approvals a ON a.tenant_id = n.tenant_id AND a.workflow_run_id = n.run_id AND a.node_id = n.id
     WHERE n.type = 'approval' GROUP BY 1, 2`,
  )
  const wrong = nodes.filter((one) => one.waiting > 0 || one.approved !== (one.status === 3 ? 1 : 0))
  const statusOf = new Map(known.map(({ id, status }) => [id, status]))
  const decided = [...Map.groupBy(told, ({ id }) => id)]
  return [
    ...wrong.map(
      (one) => `${one.name} has status ${one.status}, ${one.approved} approved and ${one.waiting} that wait`,
    ),
    ...decided.flatMap(([id, all]) => (all.length > 1 ? [`approval ${id} was decided ${all.length} times`] : [])),
    ...decided.flatMap(([id, [one]]) =>
      statusOf.get(id) === (one!.approved ? 'approved' : 'rejected') ? [] : [`approval ${id} is ${statusOf.get(id)}`],
    ),
  ]
}

/** What came before everything that it depends on. */
async function disorder(client: pg.Client, done: ReadonlyMap<string, Effect[]>): Promise<string[]> {
  const { rows } = await client.query<{ run_id: string; from_node: string; to_node: string }>(
    'SELECT run_id, from_node, to_node FROM workflow_edges',
  )
  return rows.flatMap(({ run_id, from_node, to_node }) => {
    const before = done.get(`${run_id}/${from_node}`)?.find(({ ok }) => ok)
    const first = done.get(`${run_id}/${to_node}`)?.[0]
    const isEarly = before && first && first.at < before.at
    return isEarly ? [`${run_id}/${to_node} was begun before ${from_node} was done`] : []
  })
}

/** Each time of a schedule has one outcome, one that started has one run, and no run came from nowhere. */
async function firings(client: pg.Client): Promise<string[]> {
  const { rows: gaps } = await client.query<{ schedule_id: string; at: Date; next: Date }>(
    `SELECT schedule_id, at, next FROM (
       SELECT schedule_id, at, lead(at) OVER (PARTITION BY schedule_id ORDER BY at) AS next FROM workflow_firings) f
     WHERE next - at <> interval '2 seconds'`,
  )
  const { rows: runs } = await client.query<{ id: string; firings: string }>(
    `SELECT r.id, count(f.run_id) AS firings FROM workflow_runs r LEFT JOIN workflow_firings f ON f.tenant_id = r.tenant_id AND f.run_id = r.id
     WHERE r.schedule_id IS NOT NULL GROUP BY r.id HAVING count(f.run_id) <> 1`,
  )
  const { rows: lost } = await client.query<{ schedule_id: string; at: Date }>(
    `SELECT f.schedule_id, f.at FROM workflow_firings f LEFT JOIN workflow_runs r ON r.tenant_id = f.tenant_id AND r.id = f.run_id
     WHERE f.outcome = 'started' AND r.id IS NULL`,
  )
  return [
    ...gaps.map((one) => `${one.schedule_id}: no time between ${one.at.toISOString()} and ${one.next.toISOString()}`),
    ...runs.map((one) => `the scheduled run ${one.id} has ${one.firings} times`),
    ...lost.map((one) => `${one.schedule_id}: nothing was started at ${one.at.toISOString()}`),
  ]
}
