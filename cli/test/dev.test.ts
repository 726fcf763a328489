import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { sandboxesSaid } from '../dev.ts'
import { emptyFolder, run, start } from './spawned.ts'

interface Ready {
  conductorUrl: string
  gatewayUrl: string
  tenant: string
  apiKey: string
  agents: { profile: string; slug: string; chatUrl: string; key: string }[]
  bootMs: number
}

test('dev from nothing: one ready line, agents that answer and call tools, and the same keys at the next start', async (t) => {
  const data = join(await emptyFolder(t), 'data')
  const args = ['dev', '--json', '--port', '0', '--data', data]
  // Runner and sidecar require signatures: the command signs when it asks the runner for its sandboxes.
  const first = start(t, args, { RUNNER_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64') })
  const ready = JSON.parse(await first.line()) as Ready
  const fields = ['ready', 'conductorUrl', 'gatewayUrl', 'runnerUrl', 'sidecarUrl', 'internalUrl']
  assert.deepEqual(Object.keys(ready), [...fields, 'tenant', 'apiKey', 'agents', 'bootMs'])
  assert.equal(ready.tenant, 'default')
  assert.deepEqual(
    ready.agents.map((a) => [a.profile, a.slug]),
    [
      ['hello', 'hello'],
      ['support', 'support'],
    ],
  )
  const profiles = await fetch(`${ready.conductorUrl}/api/profiles`, {
    headers: { authorization: `Bearer ${ready.apiKey}` },
  })
  assert.equal(((await profiles.json()) as unknown[]).length, 2)

  const answer = await run(t, ['chat', 'support', 'What is 17% of 2310?', '--data', data])
  assert.equal(answer.code, 0, answer.stderr)
  const events = answer.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
  assert.ok(events.some((e) => e.event === 'tool' && e.name === 'calculate'))
  assert.match(events.at(-1).message, /392\.7/)

  for (const file of ['secrets.json', 'ready.json']) assert.equal((await stat(join(data, file))).mode & 0o777, 0o600)
  const port = new URL(ready.gatewayUrl).port
  const clash = await run(t, ['dev', '--json', '--data', join(data, 'other')], {
    AGENT_ORC_GATEWAY_PORT: port,
    AGENT_ORC_CONDUCTOR_PORT: '0',
    AGENT_ORC_RUNNER_PORT: '0',
    AGENT_ORC_SIDECAR_PORT: '0',
    AGENT_ORC_WORKER_PORT: '0',
  })
  assert.equal(clash.code, 1)
  assert.match(clash.stderr, new RegExp(`:${port} is in use by another process; set AGENT_ORC_GATEWAY_PORT`))
  assert.match(clash.stderr, /or choose free ports: --port 0/)

  first.child.kill('SIGTERM')
  const ended = await first.finished()
  assert.equal(ended.code, 0, ended.stderr)
  assert.equal(ended.stdout.trim().split('\n').length, 1, 'nothing but the ready line on stdout')

  const second = start(t, args)
  const again = JSON.parse(await second.line()) as Ready
  assert.equal(again.apiKey, ready.apiKey)
  assert.deepEqual(
    again.agents.map((a) => a.key),
    ready.agents.map((a) => a.key),
  )
  second.child.kill('SIGTERM')
  assert.equal((await second.finished()).code, 0)
})

test('dev says what sandboxes there are, what it means that there are none, and what process is', () => {
  assert.equal(sandboxesSaid(['bubblewrap']), 'bubblewrap')
  assert.match(sandboxesSaid(['bubblewrap', 'process']), /^bubblewrap, process \(isolates nothing: agents act as you/)
  assert.match(
    sandboxesSaid([]),
    /^none, .*Install bubblewrap .*AGENT_ORC_SANDBOX_PROCESS=true: agents then act as you/s,
  )
})
