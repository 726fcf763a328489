import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startModelServer } from '#testing'
import { codexProgram } from '../../runtimes/runtime-b/app-server.ts'
import { vendorPackage } from '../../runtimes/runtime-a/sdk.ts'
import { type Cluster, eventually, startCluster } from './cluster.ts'
import type { Run } from './sandbox-roles.ts'

/** How the models of each vendor's runtime are given the tools of the session. */
const vendors = {
  runtime_a: {
    missing: vendorPackage().missing,
    model: 'anthropic/stand-in',
    tool: (name: string) => ({ name: `mcp__runner__${name}` }),
    offered: (name: string) => `"name":"mcp__runner__${name}"`,
  },
  runtime_b: {
    missing: codexProgram().missing,
    model: 'openai/stand-in',
    tool: (name: string) => ({ name, namespace: 'mcp__runner' }),
    offered: (name: string) => `"name":"${name}"`,
  },
}

const files = {
  'letters/SKILL.md': '---\nname: letters\ndescription: Writes letters.\n---\nBe brief. See forms.md.',
  'letters/forms.md': 'Dear *name*,',
}
const canary = 'never attached'

async function importLetters(cluster: Cluster): Promise<void> {
  const form = new FormData()
  for (const [path, text] of Object.entries(files)) form.append('files', new Blob([text]), path)
  const headers = { authorization: `Bearer ${cluster.bootstrap}` }
  const tried = await fetch(`${cluster.conductorUrl}/api/skills/import`, { method: 'POST', headers, body: form })
  const { stagingId } = (await tried.json()) as { stagingId: string }
  assert.equal((await cluster.api('POST', `/api/skills/import/${stagingId}/commit`)).status, 201)
}

for (const [runtime, { missing, model, tool, offered }] of Object.entries(vendors)) {
  // Set by `npm run test:runtimes`, which has just installed it.
  if (missing !== undefined && process.env['AGENT_ORC_VENDOR_RUNTIMES'] === 'required') throw new Error(missing)

  test(
    `${runtime}: a model reads an attached skill through the vendor's own runtime`,
    { skip: missing ?? false },
    async (t) => {
      const models = await startModelServer(t)
      const env = { ANTHROPIC_API_KEY: 'stand-in', ANTHROPIC_BASE_URL: models.url, OPENAI_BASE_URL: models.url }
      const cluster = await startCluster(t, 'single', { env })
      await importLetters(cluster)
      await cluster.api('POST', '/api/skills', { name: 'other', description: canary, body: canary })
      const profile = { name: 'clerk', runtime, model, instructions: 'Be kind.', tools: ['calculate'] }
      const skills = ['letters', 'using-*']
      // A runner that has not asked its sidecar yet offers no runtime.
      await eventually('a profile is placed', async () => {
        const { status } = await cluster.api('POST', '/api/profiles', { ...profile, skills })
        return status === 201 || status === 409
      })
      await eventually('the runner has named its tools', async () => {
        return (await cluster.api('GET', '/api/skills/using-calculate')).status === 200
      })
      models.next(
        { toolCalls: [{ id: 'call_1', ...tool('skill_read'), arguments: { name: 'letters' } }] },
        { toolCalls: [{ id: 'call_2', ...tool('skill_resource'), arguments: { name: 'letters', path: 'forms.md' } }] },
        { toolCalls: [{ id: 'call_3', ...tool('skill_read'), arguments: { name: 'other' } }] },
        { text: 'Dear Ada,' },
      )
      const accepted = await cluster.api<Run>('POST', '/api/runs', { profile: 'clerk', prompt: 'Write to Ada.' })
      assert.equal(accepted.status, 202, JSON.stringify(accepted.body))
      const run = await eventually('the run ends', async () => {
        const { body } = await cluster.api<Run>('GET', `/api/runs/${accepted.body.runId}`)
        return !['queued', 'running'].includes(body.status) && body
      })
      assert.deepEqual([run.status, run.result], ['ok', 'Dear Ada,'], `${JSON.stringify(run)}\n${cluster.output()}`)

      const requests = models.requests.map(({ body }) => JSON.stringify(body))
      assert.equal(requests.length, 4)
      assert.match(
        requests[0]!,
        /Be kind\.\\n\\n# Skills\\n.*- letters: Writes letters\.\\n- using-calculate: How to use/,
      )
      for (const name of ['skill_read', 'skill_resource', 'calculate'])
        assert.ok(requests[0]!.includes(offered(name)), name)
      const results = run.events.filter(({ type }) => type === 'tool_result')
      assert.deepEqual(
        results.map(({ name, ok, content }) => [name, ok, content]),
        [
          [
            'skill_read',
            true,
            '# letters\n\nWrites letters.\n\nBe brief. See forms.md.\n\nFiles of this skill:\n- forms.md (12 bytes)',
          ],
          ['skill_resource', true, 'Dear *name*,'],
          ['skill_read', false, "This session has no skill 'other'; it has: letters, using-calculate."],
        ],
      )
      // What the tools said is what the model's next request has.
      assert.doesNotMatch(requests[0]!, /Be brief|Dear \*name\*/)
      assert.match(requests[1]!, /Be brief\. See forms\.md\./)
      assert.match(requests[2]!, /Dear \*name\*,/)
      assert.ok(!requests.join('').includes(canary))
    },
  )
}
