import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import {
  bareSidecar,
  collectRun,
  startToolServer,
  terminalOf,
  testEnvelope,
  startExternalServer,
  type ExternalTool,
} from '#testing'
import type { Connection } from '../tools/connection.ts'
import type { ToolOutcome } from '../tools/outcome.ts'
import { createToolSet } from '../tools/toolset.ts'
import { conversation, generalOnStandIn, model } from './support.ts'

const many: Record<string, ExternalTool> = {
  create_issue: { description: 'Opens a new issue in a repository.', run: async (input) => JSON.stringify(input) },
  listPullRequests: { description: 'Shows the pull requests of a repository.' },
  send_mail: { description: 'Sends a mail to somebody.' },
  ...Object.fromEntries(Array.from({ length: 30 }, (_, i) => [`other_${i}`, { description: `Does thing ${i}.` }])),
}

async function stage(t: TestContext, maxToolSchemas: number, own: string[] = ['calculate']) {
  const tools = Object.fromEntries(own.map((name) => [name, async () => ({ text: name })]))
  const session = await startToolServer(t, tools)
  const external = await startExternalServer(t, many)
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'done' } }, { maxToolSchemas })
  const mcpServers = [{ name: 'hub', url: external.url }]
  const envelope = testEnvelope({ ...model, mcpServers, sessionMcpUrl: session.url })
  const shown = () =>
    (server.requests.at(-1)!.body['tools'] as { function: { name: string; description: string } }[]).map(
      (tool) => tool.function,
    )
  const results = (events: Awaited<ReturnType<typeof collectRun>>) =>
    events.flatMap((event) => (event.type === 'tool_result' ? [event] : []))
  return { link: bareSidecar(runtime), server, external, envelope, shown, results }
}

test('up to the configured number of tools the model has all of them, above it search_tools and call_tool', async (t) => {
  const few = await stage(t, 34)
  await collectRun(few.link, few.envelope)
  assert.equal(few.shown().length, 34)
  const { link, envelope, shown } = await stage(t, 33)
  await collectRun(link, envelope)
  assert.deepEqual(
    shown().map(({ name }) => name),
    ['calculate', 'search_tools', 'call_tool'],
  )
  assert.match(shown()[1]!.description, /33 more tools \(33 of hub\)/)
})

test('tools of the session go into the catalogue, too, when there are too many of them', async (t) => {
  const own = Array.from({ length: 9 }, (_, i) => `own_${i}`)
  const { link, envelope, shown, server, results } = await stage(t, 10, own)
  server.next({ toolCalls: [{ id: 'a', name: 'call_tool', arguments: { name: 'own_3', arguments: {} } }] })
  const events = await collectRun(link, envelope)
  assert.deepEqual(
    shown().map(({ name }) => name),
    ['search_tools', 'call_tool'],
  )
  assert.match(shown()[0]!.description, /9 of this service, 33 of hub/)
  assert.deepEqual(
    results(events).map(({ name, content }) => [name, content]),
    [['own_3', 'own_3']],
  )
})

test('a model finds a tool by what it does and calls it; events show the real tool, the conversation what was said', async (t) => {
  const { link, envelope, server, external, results } = await stage(t, 10)
  server.next(
    { toolCalls: [{ id: 'a', name: 'search_tools', arguments: { query: 'open an issue', limit: 3 } }] },
    {
      toolCalls: [
        { id: 'b', name: 'call_tool', arguments: { name: 'mcp__hub__create_issue', arguments: { title: 'x' } } },
        { id: 'c', name: 'call_tool', arguments: { name: 'mcp__hub__send_mail', arguments: '{"to":"me"}' } },
      ],
    },
  )
  const events = await collectRun(link, envelope)
  const [found, issue, mail] = results(events)
  const hits = JSON.parse(found!.content) as { name: string; inputSchema: object }[]
  assert.equal(hits[0]!.name, 'mcp__hub__create_issue')
  assert.ok(hits.length <= 3 && hits[0]!.inputSchema)
  const calls = events.flatMap((event) => (event.type === 'tool_call' ? [[event.id, event.name, event.arguments]] : []))
  assert.deepEqual(calls, [
    ['a', 'search_tools', { query: 'open an issue', limit: 3 }],
    ['b', 'mcp__hub__create_issue', { title: 'x' }],
    ['c', 'mcp__hub__send_mail', { to: 'me' }],
  ])
  assert.deepEqual([issue!.name, issue!.content], ['mcp__hub__create_issue', '{"title":"x"}'])
  assert.equal(mail!.ok, true)
  assert.deepEqual(external.calls, ['create_issue', 'send_mail'])
  assert.match(conversation(server)[3]!, /b=call_tool\(.*mcp__hub__create_issue/)
  assert.equal(terminalOf(events).type, 'result')
})

for (const query of ['pull', 'I need to find some tool of any kind that can show me all my pull requests'])
  test(`words inside a name are found, however they are joined, and however long the question is: ${query}`, async (t) => {
    const { link, envelope, server, results } = await stage(t, 10)
    server.next({ toolCalls: [{ id: 'a', name: 'search_tools', arguments: { query } }] })
    const [found] = results(await collectRun(link, envelope))
    assert.match(found!.content, /^\[\{"name":"mcp__hub__listPullRequests"/)
  })

test('what does not exist or makes no sense is answered with what to do instead', async (t) => {
  const { link, envelope, server, results } = await stage(t, 10)
  server.next({
    toolCalls: [
      { id: 'a', name: 'call_tool', arguments: { name: 'create_isue', arguments: {} } },
      { id: 'b', name: 'call_tool', arguments: {} },
      { id: 'c', name: 'search_tools', arguments: { query: ' ' } },
      { id: 'd', name: 'search_tools', arguments: { query: 'zzzzqqqq' } },
      { id: 'e', name: 'mcp__hub__send_mail', arguments: {} },
      { id: 'f', name: 'call_tool', arguments: { name: 'mcp__hub__send_mail', arguments: [1] } },
      { id: 'g', name: 'call_tool', arguments: { name: 'call_tool', arguments: {} } },
    ],
  })
  const told = results(await collectRun(link, envelope)).map(({ ok, content }) => `${ok} ${content}`)
  assert.match(told[0]!, /^false There is no tool 'create_isue'\. Did you mean 'mcp__hub__create_issue'/)
  assert.match(told[1]!, /^false 'name' has to name a tool/)
  assert.match(told[2]!, /^false 'query' has to be text/)
  assert.match(told[3]!, /^true No tool matches\. There are 33: 33 of hub\./)
  assert.equal(told[4], 'true send_mail done', 'a tool that is not shown may be called all the same')
  assert.match(told[5]!, /^false The arguments of the call are not a JSON object/)
  assert.match(told[6]!, /^false 'name' has to name a tool/)
})

test('others have their turns while thousands of tools are searched, however often an answer asks', async () => {
  const tools = Array.from({ length: 2_000 }, (_, i) => ({
    name: `tool_${i}`,
    // Words that all begin alike, as in a text of signs that stand for words.
    description: Array.from({ length: 75 }, (_, j) => `\u4e2d\u4e2d${String.fromCodePoint(0x4e00 + i + j)}`).join(' '),
    inputSchema: { type: 'object' as const },
  }))
  const connection = { tools, changed: false, close: async () => {} } as unknown as Connection
  const set = createToolSet(undefined, [{ name: 'hub', connection }], 10)
  const query = `1234 ${'\u4e2d\u4e2d '.repeat(500_000)}`
  const turnsDuring = async (...calls: Promise<ToolOutcome>[]) => {
    let found: readonly ToolOutcome[] | undefined
    void Promise.all(calls).then((all) => (found = all))
    let turns = 0
    for (; found === undefined; turns++) await new Promise(setImmediate)
    return { turns, found }
  }
  await turnsDuring(set.call('search_tools', { query }, 'a'))
  const { turns, found } = await turnsDuring(
    set.call('search_tools', { query }, 'b'),
    set.call('search_tools', { query: 'tool' }, 'c'),
    set.call(query, {}, 'd'),
  )
  assert.ok(turns >= (3 * 2_000) / 50, `${turns} turns`)
  assert.match(found[0]!.content, /^\[\{"name":"mcp__hub__tool_1234"/)
  assert.match(found[2]!.content, /Did you mean 'mcp__hub__tool_1234'/)
})
