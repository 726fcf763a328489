import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Cluster, eventually, forms, startCluster } from './cluster.ts'

interface Run {
  readonly runId: string
  readonly sessionId: string
  readonly status: string
  readonly error?: unknown
  readonly events: readonly Record<string, unknown>[]
}

async function finished(cluster: Cluster, body: object): Promise<Run> {
  // A runner that was just started again is not known to live yet.
  const accepted = await eventually('a runner takes the run', async () => {
    const answer = await cluster.api<Run>('POST', '/api/runs', { profile: 'clerk', prompt: 'Go.', ...body })
    return answer.status === 503 ? undefined : answer
  })
  assert.equal(accepted.status, 202, JSON.stringify(accepted.body))
  return eventually('the run ends', async () => {
    const run = (await cluster.api<Run>('GET', `/api/runs/${accepted.body.runId}`)).body
    return ['queued', 'running'].includes(run.status) ? undefined : run
  })
}

/** Imports the skill `letters`, as a folder with one more file. */
async function importLetters(cluster: Cluster, front: string, body: string, more: Record<string, string> = {}) {
  const form = new FormData()
  const files = {
    'letters/SKILL.md': `---\nname: letters\ndescription: ${front}\n---\n${body}`,
    'letters/forms.md': `Forms: ${body}`,
    ...more,
  }
  for (const [path, text] of Object.entries(files)) form.append('files', new Blob([text]), path)
  const headers = { authorization: `Bearer ${cluster.bootstrap}` }
  const tried = await fetch(`${cluster.conductorUrl}/api/skills/import`, { method: 'POST', headers, body: form })
  const { stagingId } = (await tried.json()) as { stagingId: string }
  const made = await cluster.api<{ version: number }>('POST', `/api/skills/import/${stagingId}/commit`)
  assert.equal(made.status, 201, JSON.stringify(made.body))
}

const requestText = (cluster: Cluster): string => JSON.stringify(cluster.model.requests.at(-1)!.body)
const resultsOf = ({ events }: Run): unknown[] =>
  events.filter(({ type }) => type === 'tool_result').map(({ content }) => content)

/** Has the model read the skill and its file; returns what it was told. */
async function readLetters(cluster: Cluster, task: object = {}): Promise<{ run: Run; results: unknown[] }> {
  cluster.model.next(
    { toolCalls: [{ name: 'skill_read', arguments: { name: 'letters' } }] },
    { toolCalls: [{ name: 'skill_resource', arguments: { name: 'letters', path: 'forms.md' } }] },
    { text: 'Dear Ada' },
  )
  const run = await finished(cluster, task)
  assert.equal(run.status, 'ok', JSON.stringify(run.error))
  return { run, results: resultsOf(run) }
}
const told = (description: string, body: string) => [
  `# letters\n\n${description}\n\n${body}\n\nFiles of this skill:\n- forms.md (${body.length + 7} bytes)`,
  `Forms: ${body}`,
]

for (const form of forms) {
  test(`${form}: an attached skill reaches the model in three steps, and a session keeps the version it began with`, async (t) => {
    const cluster = await startCluster(t, form, form === 'four' ? { apart: ['runner'] } : {})
    // A runner has named its tools before the conductor is ready: its first session must not lack the skills that explain them.
    assert.equal((await cluster.api('GET', '/api/skills/using-calculate')).status, 200)
    await cluster.agent('clerk', { tools: ['calculate'] })
    const attach = (skills: string[], more: object = {}) =>
      cluster.api<{ error?: string }>('PUT', '/api/profiles/clerk', {
        model: 'openai/stand-in',
        tools: ['calculate'],
        skills,
        ...more,
      })
    assert.deepEqual(
      [(await attach(['letters'])).status, (await attach(['letters'])).body.error],
      [400, 'unknown_skill: letters'],
    )

    await importLetters(cluster, 'Writes letters.', 'Be brief.')
    assert.equal((await attach(['letters', 'using-*'])).status, 200)
    const { run, results } = await readLetters(cluster)
    assert.deepEqual(results, told('Writes letters.', 'Be brief.'))
    const text = requestText(cluster)
    assert.match(text, /- letters: Writes letters\.\\n- using-calculate: How to use/)
    assert.match(text, /"name":"skill_resource"/)
    assert.doesNotMatch(text, /using-http-fetch/)
    const { sessionId } = run

    await importLetters(cluster, 'Writes letters.', 'Be polite.')
    assert.deepEqual((await readLetters(cluster, { sessionId })).results, told('Writes letters.', 'Be brief.'))
    assert.deepEqual((await readLetters(cluster)).results, told('Writes letters.', 'Be polite.'))
    assert.equal((await cluster.api('DELETE', '/api/skills/letters')).status, 204)
    if (form === 'four') {
      // The runner forgets what conductors have brought it.
      await cluster.kill('runner')
      await cluster.start('runner')
    }
    assert.deepEqual((await readLetters(cluster, { sessionId })).results, told('Writes letters.', 'Be brief.'))
    cluster.model.next({ text: 'without' })
    const without = await finished(cluster, {})
    assert.ok(
      without.events.some(({ stage, message }) => stage === 'skills_absent' && String(message).includes('letters')),
      JSON.stringify(without.events),
    )
    assert.doesNotMatch(requestText(cluster), /- letters:/)

    await importLetters(cluster, 'Writes letters.', 'Run it.', { 'letters/scripts/a.sh': '#!/bin/sh\n' })
    const refused = await cluster.api<{ error: string }>('POST', '/api/runs', { profile: 'clerk', prompt: 'x' })
    assert.deepEqual([refused.status, refused.body.error], [400, 'skill_needs_sandbox: letters'])
    assert.equal((await attach(['letters'])).body.error, 'skill_needs_sandbox: letters')
    await cluster.api('POST', '/api/skills', { name: 'web', description: 'd', body: 'b', allowedTools: ['WebFetch'] })
    assert.equal((await attach(['web'])).body.error, 'skill_needs_tools: web')
    assert.equal((await attach(['web'], { tools: ['http_fetch'] })).status, 200)
  })
}
