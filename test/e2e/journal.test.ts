import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { eventually, startCluster } from './cluster.ts'

interface Accepted {
  readonly runId: string
}
interface Detail {
  readonly status: string
  readonly events: unknown[]
}

test('with AGENT_ORC_RUNS_DIR every run has its JSONL file, and a killed conductor’s files are whole after its return', async (t) => {
  const dir = await mkdtemp(join(tmpdir(), 'runs-dir-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const cluster = await startCluster(t, 'four', { env: { AGENT_ORC_RUNS_DIR: dir }, apart: ['conductor'] })
  await cluster.api('POST', '/api/profiles', { name: 'writer', model: 'openai/stand-in' })
  const file = async (runId: string): Promise<Record<string, unknown>[]> =>
    (await readFile(join(dir, 'default', `${runId}.jsonl`), 'utf8'))
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, unknown>)
  const finished = (runId: string) =>
    eventually(`the file of ${runId} is finished`, async () => {
      const lines = await file(runId).catch(() => [])
      return lines.at(-1)?.['type'] === 'finish' && lines
    })
  const run = async (prompt: string): Promise<string> => {
    const { body } = await cluster.api<Accepted>('POST', '/api/runs', { profile: 'writer', prompt })
    return body.runId
  }

  const quick = await finished(await run('hello'))
  assert.equal(quick[0]!['type'], 'header')
  assert.equal(quick.at(-1)!['status'], 'ok')

  cluster.model.next({ text: 'will not be finished', hangAfter: 2 })
  const cut = await run('go on')
  await eventually('events are in the file', async () => (await file(cut).catch(() => [])).length > 1)
  await cluster.kill('conductor')
  await cluster.start('conductor')
  const lines = await finished(cut)
  assert.equal(lines.at(-1)!['status'], 'interrupted')
  const { body } = await cluster.api<Detail>('GET', `/api/runs/${cut}`)
  assert.equal(body.status, 'interrupted')
  assert.deepEqual(lines.slice(1, -1), body.events)
})
