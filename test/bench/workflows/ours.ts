import { setTimeout as sleep } from 'node:timers/promises'
import { Client } from 'pg'
import type { Processes } from '../processes.ts'
import { startService } from '../memory/service.ts'
import type { Engine, Shape } from './engine.ts'

/** Requests under way at once. */
const abreast = 20

/** The service as `agent-orc dev` starts it; workflows of conditions that hold. Times are those of its own rows. */
export async function startOurs(processes: Processes): Promise<Engine> {
  const service = await startService(processes)
  const client = new Client({ connectionString: service.dsn })
  await client.connect()
  await client.query(`SELECT set_config('app.tenant_id', 'default', false)`)
  const stored = new Map<string, string>()
  const definition = async (shape: Shape): Promise<string> => {
    const known = stored.get(shape.name)
    if (known !== undefined) return known
    const body = { name: shape.name, nodes: nodesFor(shape) }
    const { id } = (await service.ask('POST', '/api/workflows/definitions', body)) as { id: string }
    stored.set(shape.name, id)
    return id
  }
  return {
    name: 'agent-orc',
    async run(shape, count) {
      const workflowDefinitionId = await definition(shape)
      const ids: string[] = []
      let left = count
      const send = async (): Promise<void> => {
        while (left-- > 0) {
          const { id } = (await service.ask('POST', '/api/workflows/runs', { workflowDefinitionId })) as { id: string }
          ids.push(id)
        }
      }
      await Promise.all(Array.from({ length: Math.min(abreast, count) }, send))
      // The service pays for what is asked here: while runs are open, the index that has only these answers.
      const open = {
        name: 'open',
        text: `SELECT FROM workflow_runs WHERE tenant_id = 'default' AND status IN (1, 2) LIMIT 1`,
      }
      while ((await client.query(open)).rows.length > 0) await sleep(count === 1 ? 5 : 50)
      const { rows } = await client.query<{ ms: number; began: number; ended: number }>({
        name: 'over',
        text: `SELECT (extract(epoch FROM finished_at - created_at) * 1000)::float8 AS ms, (extract(epoch FROM created_at) * 1000)::float8 AS began,
                 (extract(epoch FROM finished_at) * 1000)::float8 AS ended
               FROM workflow_runs WHERE tenant_id = 'default' AND id = ANY ($1) AND status = 3`,
        values: [ids],
      })
      if (rows.length < count) throw new Error(`${count - rows.length} of ${count} workflow runs did not complete`)
      const began = rows.reduce((least, one) => Math.min(least, one.began), Infinity)
      const ended = rows.reduce((most, one) => Math.max(most, one.ended), 0)
      return { each: rows.map(({ ms }) => ms), all: ended - began }
    },
    stop: async () => client.end(),
  }
}

function nodesFor({ chain, wide, deep }: Shape): object[] {
  const node = (id: string, before?: string) => ({
    id,
    type: 'condition',
    if: true,
    ...(before === undefined ? {} : { dependsOn: [before] }),
  })
  return [
    ...Array.from({ length: chain }, (_, i) => node(`n${i}`, i === 0 ? undefined : `n${i - 1}`)),
    ...Array.from({ length: wide * deep }, (_, i) =>
      node(`w${i}`, i >= wide ? `w${i - wide}` : chain > 0 ? `n${chain - 1}` : undefined),
    ),
  ]
}
