import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { type Cluster, eventually, parts } from './cluster.ts'
import { hasBubblewrap, type Run, startWithSandboxes } from './sandbox-roles.ts'

/** Has the agent of a session call the tool `shell`, and returns the answer. */
async function shell(
  cluster: Cluster,
  command: string,
  sessionId?: string,
): Promise<{ said: string; sessionId: string }> {
  cluster.model.next({ toolCalls: [{ name: 'shell', arguments: { command } }] })
  cluster.model.next({ text: 'Done.' })
  const task = { profile: 'coder', prompt: 'Look around.', ...(sessionId === undefined ? {} : { sessionId }) }
  const run = await eventually('a runner takes it', async () => {
    const { status, body } = await cluster.api<Run>('POST', '/api/runs', task)
    return status === 202 && body
  })
  const ended = await eventually('the run is over', async () => {
    const { body } = await cluster.api<Run>('GET', `/api/runs/${run.runId}`)
    return body.status !== 'running' && body
  })
  assert.equal(ended.result, 'Done.', `${JSON.stringify(ended)}\n${cluster.output()}`)
  const result = ended.events.find(({ type }) => type === 'tool_result')
  return { said: JSON.stringify(result), sessionId: run.sessionId }
}

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
