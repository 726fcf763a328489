import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { eventually, parts } from './cluster.ts'
import { hasBubblewrap, type Run, shell, startWithSandboxes } from './sandbox-roles.ts'

test('the agent of a session is in a sandbox: no secret of the runner, no door but its own', async (t) => {
  if (!(await hasBubblewrap(t))) return
  const canary = randomBytes(24).toString('hex')
  const cluster = await startWithSandboxes(
    t,
    'four',
    { AGENT_ORC_SANDBOX_PROVIDERS: 'bubblewrap', OPENAI_API_KEY: canary, AGENT_ORC_CANARY: canary },
    // What is secret is in the environment of processes.
    parts,
  )
  const profile = { name: 'coder', model: 'openai/stand-in', workerMode: 'sandbox', tools: ['shell'] }
  assert.equal((await cluster.api('POST', '/api/profiles', profile)).status, 201)

  // A pattern that does not match itself, because the search is a process, too.
  const needle = `'${canary.replace(/.$/, '[$&]')}'`
  const first = await shell(
    cluster,
    `id -u; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -ac ${needle};
     grep -rls ${needle} / --exclude-dir=proc --exclude-dir=usr --exclude-dir=node_modules; ls -d /etc/shadow /root /home; echo over`,
  )
  assert.match(first.said, /1000\\n0\\n.*over/, first.said)
  assert.doesNotMatch(first.said, /"\/(etc|root|home)/)

  // The worker has removed its token from its own environment. Without the token the runner refuses, and nothing else can be reached.
  const script = `
    const { readdirSync, readFileSync } = require('node:fs')
    const environ = readdirSync('/proc').map((pid) => { try { return readFileSync('/proc/' + pid + '/environ', 'utf8') } catch { return '' } })
    const token = /AGENT_ORC_WORKER_TOKEN=([\\w.-]+)/.exec(environ.join('\\0'))?.[1]
    const ask = (url) =>
      fetch(url, { headers: { 'x-agent-orc-worker-protocol': '1' } }).then((answer) => answer.status, (error) => error.cause.code)
    const base = 'http://127.0.0.1:7060'
    Promise.all([
      token === undefined ? 'none' : 'found',
      ask(base + '/runner/worker/${first.sessionId}/state'),
      ask(base + '/runner/sessions/${first.sessionId}/mcp'),
      ask(base + '/runner/sessions'),
      ask(base + '/runner/info'),
      ask(base + '/metrics'),
      ask('${cluster.runnerUrl}/runner/sessions'),
      ask('${cluster.conductorUrl}/healthz'),
      ask('${cluster.model.url}/models'),
    ]).then((answers) => console.log('doors ' + answers.join(' ')))`
  const encoded = Buffer.from(script).toString('base64')
  const { said } = await shell(cluster, `${process.execPath} -e "$(echo ${encoded} | base64 -d)"`, first.sessionId)
  const doors = /doors ((?:\w+ ?){9})/.exec(said)?.[1]?.trim().split(' ')
  const shut = ['ECONNREFUSED', 'ECONNREFUSED', 'ECONNREFUSED']
  assert.deepEqual(doors, ['none', '401', '405', '404', '404', '404', ...shut], said)
})

test('files of an agent outlive a pause of its sandbox', async (t) => {
  if (!(await hasBubblewrap(t))) return
  const cluster = await startWithSandboxes(t, 'single', {
    AGENT_ORC_SANDBOX_PROVIDERS: 'bubblewrap',
    AGENT_ORC_SANDBOX_IDLE_PAUSE: '500ms',
  })
  const profile = { name: 'coder', model: 'openai/stand-in', workerMode: 'sandbox', tools: ['shell'] }
  assert.equal((await cluster.api('POST', '/api/profiles', profile)).status, 201)
  const { sessionId } = await shell(cluster, 'echo kept > note.txt; pwd')
  await eventually('it is paused', async () => {
    const { body } = await cluster.api<{ state: string }>('GET', `/api/sessions/${sessionId}/worker`)
    return body.state === 'paused'
  })
  assert.match((await shell(cluster, 'cat note.txt', sessionId)).said, /kept/)
})

test('an agent that fills the disk of its runner is stopped, and told by which limit', async (t) => {
  if (!(await hasBubblewrap(t))) return
  const max = 20_000_000
  const cluster = await startWithSandboxes(t, 'single', {
    AGENT_ORC_SANDBOX_PROVIDERS: 'bubblewrap',
    AGENT_ORC_SANDBOX_COUNT_FILES: '100ms',
    AGENT_ORC_LIMIT_WORKSPACE_BYTES: String(max),
  })
  const used = async (): Promise<number> => {
    type Shown = { limits: { name: string; used?: number }[] }
    const { body } = await cluster.api<Shown>('GET', '/api/limits')
    return body.limits.find(({ name }) => name === 'workspaceBytes')!.used ?? 0
  }
  const profile = { name: 'coder', model: 'openai/stand-in', workerMode: 'sandbox', tools: ['shell', 'write_file'] }
  assert.equal((await cluster.api('POST', '/api/profiles', profile)).status, 201)
  const { sessionId } = await shell(cluster, 'head -c 1000000 /dev/urandom > some')
  await eventually('it is counted', async () => (await used()) >= 1_000_000)

  const start = async (session?: string): Promise<Run> => {
    const task = { profile: 'coder', prompt: 'x', ...(session === undefined ? {} : { sessionId: session }) }
    const { runId } = (await cluster.api<Run>('POST', '/api/runs', task)).body
    return eventually('the run is over', async () => {
      const { body } = await cluster.api<Run>('GET', `/api/runs/${runId}`)
      return body.status !== 'running' && body
    })
  }
  // It does not end by itself, and would have filled the disk of the machine.
  const fill = 'while true; do head -c 1000000 /dev/zero >> more || sleep 1; sleep 0.02; done'
  cluster.model.next({ toolCalls: [{ name: 'shell', arguments: { command: fill } }] })
  const stopped = await start(sessionId)
  assert.deepEqual([stopped.status, stopped.error?.code], ['error', 'limit_exceeded'], cluster.output())
  assert.match(stopped.error!.message, /limit workspaceBytes of this tenant is 20000000/)
  const full = await used()
  assert.ok(full > max, String(full))
  // Neither wakes nor begins a sandbox.
  for (const session of [sessionId, undefined]) assert.equal((await start(session)).error?.code, 'limit_exceeded')
  assert.equal((await used()) < full + 10_000_000, true, 'nothing writes any more')
  assert.equal((await cluster.api('DELETE', `/api/sessions/${sessionId}`)).status, 204)
  await eventually('its files are gone', async () => (await used()) < max)
  assert.match((await shell(cluster, 'echo again')).said, /again/)
})
