import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { tlsHost } from '../../plugins/sandboxes/test/hosts.ts'
import { type Cluster, eventually } from './cluster.ts'
import { hasBubblewrap, type Run, shell, startWithSandboxes } from './sandbox-roles.ts'

const ca = fileURLToPath(new URL('../certificates/ca.pem', import.meta.url))

/** A cluster whose agent `coder` is in a sandbox without a network, and a host behind TLS that its profile names. */
async function setup(t: TestContext, respond?: Parameters<typeof tlsHost>[1]) {
  const host = await tlsHost(t, respond)
  const cluster = await startWithSandboxes(t, 'four', {
    AGENT_ORC_SANDBOX_PROVIDERS: 'bubblewrap',
    AGENT_ORC_MASTER_KEY: randomBytes(32).toString('base64'),
    AGENT_ORC_EGRESS_OWN_HOSTS: `localhost:${host.port}=default`,
    AGENT_ORC_EGRESS_CA: ca,
  })
  const made = await cluster.api('POST', '/api/secrets', { name: 'token', value: 'the first value' })
  assert.equal(made.status, 201, JSON.stringify(made.body))
  const egress = [{ host: host.name, paths: ['/v1'], headers: { authorization: 'Bearer secret://token' } }]
  const profile = { name: 'coder', model: 'openai/stand-in', workerMode: 'sandbox', tools: ['shell'], egress }
  const written = await cluster.api('POST', '/api/profiles', profile)
  assert.equal(written.status, 201, JSON.stringify(written.body))
  return { cluster, host, profile }
}

/** What a command printed, as it stands in the events of its run. */
const said = async (cluster: Cluster, command: string, sessionId?: string) => {
  const ran = await shell(cluster, command, sessionId)
  const { content } = JSON.parse(ran.said) as { readonly content?: string }
  return { ...ran, text: content ?? ran.said }
}

test('programs in a sandbox reach the hosts of its profile by proxy and by path, with a secret that they never see', async (t) => {
  if (!(await hasBubblewrap(t))) return
  const { cluster, host } = await setup(t)
  const at = `localhost:${host.port}`
  const script = `fetch(process.env.AGENT_ORC_EGRESS_URL + '/${at}/v1/node', { headers: { authorization: 'Bearer ' + process.env.AGENT_ORC_EGRESS_KEY } }).then((answer) => answer.text()).then((text) => console.log('node ' + text))`
  const first = await said(
    cluster,
    `curl -s --noproxy '' http://${at}/v1/curl; echo;
     curl -s --noproxy '' http://${at}/other; echo;
     curl -s --noproxy '' http://example.com/; echo;
     curl -sv --noproxy '' https://${at}/v1/tls 2>&1 | grep -o '405 .*'; echo;
     ${process.execPath} -e "$(echo ${Buffer.from(script).toString('base64')} | base64 -d)"; env | sort; echo "kept=$http_proxy" > kept`,
  )
  assert.match(first.text, /^pong\n/)
  assert.match(first.text, /"egress_not_allowed".*name it in paths of the host/)
  assert.match(first.text, /may not reach example\.com: name it in egress of the profile/)
  assert.match(first.text, /405 Method Not Allowed: use http:\/\/ in place of https:\/\//)
  assert.match(first.text, /node pong/)
  assert.match(first.text, /http_proxy=http:\/\/run:[\w-]{32}@127\.0\.0\.1:7060/)
  assert.doesNotMatch(first.text, /AGENT_ORC_WORKER_TOKEN|the first value/)
  const authorized = () => host.asked.map(({ target, headers }) => [target, headers.authorization])
  const bearer = 'Bearer the first value'
  assert.deepEqual(authorized(), [
    ['/v1/curl', bearer],
    ['/v1/node', bearer],
  ])

  // The session goes on with the new value, and a key that was kept from the run before opens nothing.
  await cluster.api('PUT', '/api/secrets/token', { value: 'the second value' })
  const second = await said(
    cluster,
    `curl -s --noproxy '' http://${at}/v1/again; echo; . ./kept; echo; curl -s --noproxy '' -x "$kept" http://${at}/v1/kept`,
    first.sessionId,
  )
  assert.match(second.text, /^pong\n/)
  assert.match(second.text, /proxy_key_refused/)
  assert.deepEqual(authorized().slice(2), [['/v1/again', 'Bearer the second value']])
})

test('a profile says what its sandbox may reach, or is refused', async (t) => {
  if (!(await hasBubblewrap(t))) return
  const { cluster, host, profile } = await setup(t)
  const write = async (egress: unknown, more: object = {}) => {
    const { status, body } = await cluster.api<{ error: string; message: string }>('PUT', '/api/profiles/coder', {
      ...profile,
      egress,
      ...more,
    })
    return status === 200 ? 'ok' : `${status} ${body.error}: ${body.message}`
  }
  const [listed] = profile.egress
  assert.equal(await write([listed]), 'ok')
  assert.match(await write([listed], { workerMode: 'static' }), /^400 invalid_egress: .*workerMode: sandbox/)
  const stranger = { ...listed, headers: { authorization: 'Bearer secret://nobodys' } }
  assert.match(await write([stranger]), /^400 unknown_secret: nobodys: .*nobodys/)
  assert.match(await write([{ ...listed, headers: { a: 'secret://' } }]), /^400 invalid_ref/)
  for (const name of ['127.0.0.1:8080', '10.0.0.7', '169.254.169.254', `127.0.0.1:${host.port}`])
    assert.match(await write([{ host: name }]), /^400 invalid_egress: .*is private.*ownHosts/, name)
  assert.match(await write([{ host: 'metadata.google.internal' }]), /^400 invalid_egress/)

  // A run that finds its secret gone ends so, before anything is started for it.
  await cluster.api('DELETE', '/api/secrets/token')
  const { body } = await cluster.api<Run>('POST', '/api/runs', { profile: 'coder', prompt: 'Look around.' })
  const ended = await eventually('the run is over', async () => {
    const run = (await cluster.api<Run>('GET', `/api/runs/${body.runId}`)).body
    return !['queued', 'running'].includes(run.status) && run
  })
  assert.equal(ended.error?.code, 'unknown_secret: token')
  assert.deepEqual(host.asked, [])
})
