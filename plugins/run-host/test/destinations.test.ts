import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testEnvelope } from '#testing'
import { hostOf, result, scripted } from './support.ts'

const envelope = (sessionMcpUrl: string, ...urls: string[]) =>
  testEnvelope({ sessionMcpUrl, mcpServers: urls.map((url, i) => ({ name: `s${i}`, url })) })
const runner = 'http://runner-1.internal:7060/runner/sessions/s/mcp'

test('a run that would be sent to a host that the sidecar was not told of is refused, and names it', async (t) => {
  let ran = 0
  const runtimes = { general: scripted(() => [result(`${++ran}`)]) }
  const allowed = { runnerHosts: '.internal:7060, [::1]', mcpHosts: 'api.example.com, tools.internal:9000' }
  const { kernel } = await hostOf(t, runtimes, { config: allowed })
  const run = async (payload: object) => {
    const reply = await kernel.listeners['sidecar']!.inject({ method: 'POST', url: '/run', payload })
    return reply.statusCode === 200 ? 200 : `${reply.statusCode} ${reply.json<{ message: string }>().message}`
  }
  const toRunners = (host: string) =>
    `403 This sidecar does not allow the host ${host}; add it to AGENT_ORC_RUNNER_HOSTS.`
  const toServers = (host: string) => `403 This sidecar does not allow the host ${host}; add it to AGENT_ORC_MCP_HOSTS.`
  const cases: [object, unknown][] = [
    [envelope(runner, 'https://api.example.com/mcp', 'http://tools.internal:9000/'), 200],
    [envelope('http://[::1]:1234/mcp'), 200],
    [testEnvelope(), 200],
    [envelope('http://runner-1.internal:7061/mcp'), toRunners('runner-1.internal:7061')],
    [envelope('http://runner-1.internal.evil.com:7060/mcp'), toRunners('runner-1.internal.evil.com:7060')],
    [envelope('http://169.254.169.254/latest'), toRunners('169.254.169.254')],
    [envelope('not a url'), toRunners('no host')],
    [envelope(runner, 'https://api.example.com/', 'https://evil.example.com/'), toServers('evil.example.com')],
    [envelope(runner, 'http://tools.internal/'), toServers('tools.internal')],
    [envelope(runner, 'https://api.example.com@evil.com/'), toServers('evil.com')],
  ]
  for (const [payload, outcome] of cases) assert.equal(await run(payload), outcome, JSON.stringify(payload))
  assert.equal(ran, 3)
})

test('`none` allows no external server, and an empty list any', async (t) => {
  const runtimes = { general: scripted(() => [result('hi')]) }
  const status = async (config: object): Promise<number> => {
    const { kernel } = await hostOf(t, runtimes, { config })
    const payload = envelope(runner, 'https://api.example.com/')
    return (await kernel.listeners['sidecar']!.inject({ method: 'POST', url: '/run', payload })).statusCode
  }
  assert.deepEqual([await status({ mcpHosts: 'none' }), await status({})], [403, 200])
})
