import { readFile, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join, relative } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { ask } from './client.ts'
import type { Cluster } from './cluster.ts'
import type { Random } from './random.ts'
import type { Stored } from './stored.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))

/** One execution of the tool `pay`. */
export interface Payment {
  readonly runId: string
  readonly idempotencyKey: string
}

/** A server that counts payments, and a role file of runners whose tool `pay` makes them. */
export async function startPayments(folder: string) {
  const made: Payment[] = []
  const server = createServer(async (request, response) => {
    let body = ''
    for await (const chunk of request) body += String(chunk)
    made.push(JSON.parse(body) as Payment)
    response.end(`receipt ${made.length}`)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const use = relative(folder, join(root, 'test/e2e/counting-tool.ts'))
  const runner = join(folder, 'runner.yaml')
  const tool = `\n  counting-tool:\n    use: ${use}\n    url: http://127.0.0.1:${(server.address() as AddressInfo).port}/\n`
  await writeFile(runner, (await readFile(join(root, 'config/runner.yaml'), 'utf8')) + tool)
  return {
    made,
    files: { runner },
    stop: async () => {
      server.closeAllConnections()
      server.close()
    },
  }
}

/** What a person was told to have decided. */
export interface Decision {
  readonly id: string
  readonly approved: boolean
}

const answerMs = 10_000

/** People at any conductor, who approve three calls of four, some of them twice at once. */
export function startDeciding(random: Random, cluster: Pick<Cluster, 'apiKey' | 'url'>) {
  const { apiKey } = cluster
  const told: Decision[] = []
  const conductor = (): string => cluster.url(random.pick(['conductor-1', 'conductor-2'] as const))
  const over = new AbortController()
  const decide = async (id: string): Promise<void> => {
    const approved = random.chance(0.75)
    const body = { decision: approved ? 'approve' : 'reject' }
    const answer = await ask(`${conductor()}/api/approvals/${id}/resolve`, apiKey, 'POST', body, answerMs).catch(
      () => undefined,
    )
    if (answer?.status === 200) told.push({ id, approved })
  }
  const done = (async () => {
    while (!over.signal.aborted) {
      const listed = await ask(
        `${conductor()}/api/approvals?status=waiting&limit=50`,
        apiKey,
        'GET',
        undefined,
        answerMs,
      ).catch(() => undefined)
      const ids = listed?.status === 200 ? (listed.body as unknown as { id: string }[]).map(({ id }) => id) : []
      await Promise.all(ids.flatMap((id) => (random.chance(0.1) ? [decide(id), decide(id)] : [decide(id)])))
      await sleep(random.between(100, 1_500))
    }
  })()
  return {
    problems: (stored: Stored, payments: readonly Payment[]) => approvalProblems(stored, payments, told),
    async stop() {
      over.abort()
      await done
    },
  }
}

/** One sentence for each promise about calls that waited for people that is broken. */
export function approvalProblems(stored: Stored, payments: readonly Payment[], told: readonly Decision[]): string[] {
  const runs = new Map(stored.runs.map((run) => [run.id, run]))
  const paid = Map.groupBy(payments, ({ runId }) => runId)
  const known = new Map(stored.approvals.map((approval) => [approval.id, approval]))
  const problems: string[] = []
  for (const { id, runId, status } of stored.approvals) {
    const run = runs.get(runId)
    const made = paid.get(runId)?.length ?? 0
    const say = (text: string): void =>
      void problems.push(`approval ${id} (${status}) of run ${runId} (${run?.status}): ${text}`)
    if (status === 'waiting') say('waits still')
    if (made > 1) say(`its call was made ${made} times`)
    if (status !== 'approved' && made > 0) say('its call was made')
    if (status === 'approved' && run?.status === 'ok' && made === 0) say('its call was never made')
  }
  for (const { id, owner, finishedAt } of stored.runs)
    if (owner === 'parked' && finishedAt === undefined) problems.push(`run ${id} is parked still`)
  for (const runId of paid.keys())
    if (!stored.approvals.some((one) => one.runId === runId)) problems.push(`run ${runId} has paid without an approval`)
  for (const [id, decisions] of Map.groupBy(told, (one) => one.id)) {
    if (decisions.length > 1) problems.push(`approval ${id} was decided ${decisions.length} times`)
    const status = known.get(id)?.status
    if (status !== (decisions[0]!.approved ? 'approved' : 'rejected'))
      problems.push(`approval ${id} is ${status}, and somebody was told otherwise`)
  }
  return problems
}
