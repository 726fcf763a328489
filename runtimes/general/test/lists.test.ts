import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { bareSidecar, collectRun, type ExternalTool, startExternalServer, terminalOf, testEnvelope } from '#testing'
import { generalOnStandIn, model, stages } from './support.ts'

// What the MCP servers of a run may list together: a profile has up to 50 of them, and a sidecar keeps their lists as long as the run.

/** A run with these servers: those that it does without, and what the model is told about tools. */
async function play(t: TestContext, servers: Record<string, { readonly url: string }>, ...steps: string[]) {
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'done' } }, { maxToolSchemas: 10 })
  server.next(...steps.map((name) => ({ toolCalls: [{ id: 'a', name, arguments: {} }] })))
  const mcpServers = Object.entries(servers).map(([name, { url }]) => ({ name, url }))
  const events = await collectRun(bareSidecar(runtime), testEnvelope({ ...model, mcpServers }))
  assert.equal(terminalOf(events).type, 'result')
  return {
    unavailable: stages(events, 'mcp_server_unavailable').map(({ server: name, message }) => [name, message]),
    told: server.requests.map(({ body }) => JSON.stringify(body['tools'])),
  }
}
const tools = (count: number): Record<string, ExternalTool> =>
  Object.fromEntries(Array.from({ length: count }, (_, i) => [`tool.${i}`, {}]))

test('the servers of a run have 5,000 tools together; one that has more than are left is left out, also when it grows later', async (t) => {
  const large = await startExternalServer(t, tools(2_000))
  const growing = await startExternalServer(t, {
    grow: {
      async run(_, announce) {
        for (const [name, tool] of Object.entries(tools(1_999))) growing.tools.set(name, tool)
        await announce('call')
        return 'grown'
      },
    },
  })
  const { unavailable, told } = await play(
    t,
    { one: large, growing, two: large, three: large, small: await startExternalServer(t, { look: {} }) },
    'mcp__growing__grow',
  )
  assert.deepEqual(unavailable, [['three', 'The servers of the run have more than 5000 tools with those of this one.']])
  assert.match(told[0]!, /Searches 4002 more tools \(2000 of one, 1 of growing, 2000 of two, 1 of small\)/)
  assert.match(told[1]!, /Searches 4001 more tools \(2000 of one, 2000 of growing, 1 of small\)/)
})

test('the servers of a run share what lists may have in bytes', async (t) => {
  const long = await startExternalServer(t, { look: { description: 'x'.repeat(9 * 1024 * 1024) } })
  const pages = await startExternalServer(
    t,
    { a: {}, b: { description: 'x'.repeat(9 * 1024 * 1024) } },
    { pageSize: 1 },
  )
  const small = await startExternalServer(t, { look: {} })
  assert.deepEqual((await play(t, { long })).unavailable, [])
  const { unavailable, told } = await play(t, { long, small, pages })
  const message = 'What the server answers is too large.'
  assert.deepEqual(unavailable, [
    ['long', message],
    ['pages', message],
  ])
  assert.match(told[0]!, /mcp__small__look/)
})
