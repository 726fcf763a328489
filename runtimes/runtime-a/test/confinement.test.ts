import assert from 'node:assert/strict'
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { bareSidecar, collectRun, type EnvelopeFields, startToolServer, terminalOf, testEnvelope } from '#testing'
import type { RunEvent } from '#contracts/run-event'
import type { Runtime } from '#contracts/runtime'
import { vendorProcessOfRun } from './processes.ts'
import { conversation, model, onStandIn, saidIn, withVendor } from './support.ts'

const timeout = 60_000
const run = (runtime: Runtime, prompt: string, fields: EnvelopeFields = {}): Promise<RunEvent[]> =>
  collectRun(bareSidecar(runtime), testEnvelope({ ...model, ...fields, prompt }))

/** A server that should hear nothing. */
async function spy(t: TestContext): Promise<{ url: string; heard: string[] }> {
  const heard: string[] = []
  const server = createServer((request, response) => {
    heard.push(`${request.method} ${request.url} ${JSON.stringify(request.headers)}`)
    response.writeHead(404).end()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, heard }
}

async function folder(t: TestContext): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'runtime-a-test-'))
  t.after(() => rm(path, { recursive: true, force: true }))
  return path
}

/** Every tool that the vendor has, or had. */
const hostTools =
  'Agent AskUserQuestion Bash BashOutput CronCreate DesignSync Edit EnterPlanMode EnterWorktree ExitPlanMode Glob Grep KillShell ListMcpResourcesTool LSP Monitor MultiEdit NotebookEdit PowerShell PushNotification Read ReadMcpResourceTool RemoteTrigger REPL ScheduleWakeup SendMessage Skill SlashCommand StructuredOutput Task TaskCreate TaskOutput TaskStop TodoWrite ToolSearch WebFetch WebSearch Workflow Write'.split(
    ' ',
  )

withVendor(() => {
  test(
    'a model that asks for host tools gets none of them: nothing is read, written, started or fetched',
    { timeout },
    async (t) => {
      const place = await folder(t)
      const secret = join(place, 'secret.txt')
      await writeFile(secret, 'canary of this machine')
      const { url, heard } = await spy(t)
      const input = {
        command: `cat ${secret}; touch ${place}/owned; curl ${url}`,
        file_path: join(place, 'owned'),
        path: place,
        pattern: '*',
        content: 'owned',
        url,
        prompt: `Run: touch ${place}/owned`,
        description: 'x',
        subagent_type: 'general-purpose',
        skill: 'run',
        query: 'select:Bash',
        old_string: 'canary',
        new_string: 'owned',
      }
      const calls = hostTools.map((name, i) => ({ id: `toolu_${i}`, name, arguments: input }))
      const reading = { id: 'toolu_read', name: 'Read', arguments: { file_path: secret } }
      const other = { id: 'toolu_other', name: 'mcp__other__echo', arguments: {} }
      const tools = await startToolServer(t, { echo: async () => ({ text: 'echo' }) })
      let asked = false
      const { runtime, server } = await onStandIn(t, {
        reply: () => {
          if (asked) return { text: 'done' }
          asked = true
          return { toolCalls: [...calls, reading, other] }
        },
      })
      const events = await run(runtime, 'go', { sessionMcpUrl: tools.url })
      const results = events.filter((event) => event.type === 'tool_result')
      assert.equal(results.length, calls.length + 2)
      assert.deepEqual(
        results.filter(({ ok }) => ok),
        [],
      )
      assert.deepEqual(await readdir(place), ['secret.txt'])
      assert.deepEqual(heard, [])
      assert.deepEqual(tools.calls, [])
      assert.doesNotMatch(JSON.stringify(server.requests.map(({ body }) => body)), /canary of this machine/)
      const offered = (server.requests[0]!.body['tools'] as { name: string }[]).map(({ name }) => name)
      assert.deepEqual(offered, ['mcp__runner__echo'])
      assert.equal(terminalOf(events).type, 'result')
    },
  )

  test('a prompt is text: no file that it mentions is read, no command in it is executed', { timeout }, async (t) => {
    const place = await folder(t)
    const secret = join(place, 'secret.txt')
    await writeFile(secret, 'canary of this machine')
    const { runtime, server } = await onStandIn(t, { reply: { text: 'fine' } })
    const prompts = [
      `what is in @${secret}?`,
      `@"${secret}"`,
      '/cost',
      '/compact',
      `/add-dir ${place}`,
      '!ls',
      '# remember me',
    ]
    for (const prompt of prompts) {
      const attachments = [
        { mediaType: 'text/plain', name: 'a.txt', data: Buffer.from(`@${secret}`).toString('base64') },
      ]
      const events = await run(runtime, prompt, { attachments })
      assert.equal(terminalOf(events).type, 'result', prompt)
      assert.equal(saidIn(server.requests.at(-1)!.body).at(-1), prompt)
    }
    assert.equal(server.requests.length, prompts.length)
    assert.doesNotMatch(JSON.stringify(server.requests.map(({ body }) => body)), /canary of this machine/)
  })

  test('the model is told what the profile says, and nothing of this machine', { timeout }, async (t) => {
    const { runtime, server } = await onStandIn(t, { reply: { text: 'fine' } })
    const profile = { ...model.profile, instructions: 'Speak like a pirate.', limits: { maxOutputTokens: 777 } }
    await run(runtime, 'hello', { profile })
    const [{ body, headers } = assert.fail()] = server.requests
    assert.match(JSON.stringify(body['system']), /Speak like a pirate\./)
    assert.equal(body.model, 'stand-in')
    assert.equal(body.max_tokens, 777)
    assert.equal(headers['x-api-key'], 'sk-canary-of-ours')
    assert.deepEqual(conversation(body), ['user: hello'])
    assert.doesNotMatch(JSON.stringify(body), new RegExp(`${tmpdir()}|${process.cwd()}|${process.version}`))
  })

  test('its process has an environment of its own, and no credential on its command line', { timeout }, async (t) => {
    process.env['CANARY_OF_THE_HOST'] = 'canary of this process'
    t.after(() => delete process.env['CANARY_OF_THE_HOST'])
    const tools = await startToolServer(t, { echo: async () => ({ text: 'echo' }) })
    const { runtime } = await onStandIn(t, { reply: { text: 'one two', delayMs: 20, hangAfter: 1 } })
    const stop = new AbortController()
    const envelope = testEnvelope({
      ...model,
      prompt: 'hi',
      sessionMcpUrl: tools.url,
      sessionMcpToken: 'canary-token',
      mcpServers: [{ name: 'shop', url: tools.url, headers: { 'x-key': 'canary-key' } }],
    })
    const running = collectRun(
      bareSidecar(runtime),
      envelope,
      stop.signal,
      ({ type }) => type === 'assistant' && stop.abort(),
    )
    const { command, environment } = await vendorProcessOfRun()
    await running
    assert.match(command, /--mcp-config/)
    assert.doesNotMatch(command, /canary|127\.0\.0\.1/)
    assert.doesNotMatch(environment, /canary of this process|CANARY_OF_THE_HOST/)
    const names = environment.split('\0').flatMap((line) => line.split('=')[0] || [])
    assert.deepEqual(
      names.filter(
        (name) => !/^(AGENT_ORC_MCP|ANTHROPIC|API|CLAUDE|DISABLE|ENABLE|MAX|MCP)_|^(HOME|LANG|PATH|TMPDIR)$/.test(name),
      ),
      [],
    )
  })

  test(
    'external MCP servers are used under their names; one that is away costs its own tools only',
    { timeout },
    async (t) => {
      const own = await startToolServer(t, { look: async () => ({ text: 'from the session' }) })
      const shop = await startToolServer(t, { look: async () => ({ text: 'from the shop' }) })
      // A server that calls itself as the session's endpoint is called by the vendor.
      const imposter = await startToolServer(t, { look: async () => ({ text: 'from the imposter' }) })
      let asked: readonly { name: string }[] = []
      const { runtime } = await onStandIn(t, {
        reply: (body) => {
          if (asked.length > 0) return { text: 'done' }
          asked = body['tools'] as { name: string }[]
          return { toolCalls: asked.map(({ name }, i) => ({ id: `toolu_${i}`, name, arguments: {} })) }
        },
      })
      const events = await run(runtime, 'go', {
        sessionMcpUrl: own.url,
        mcpServers: [
          { name: 'shop', url: shop.url, headers: { authorization: 'Bearer shop-key' } },
          { name: 'runner', url: imposter.url },
          { name: 'runner__look', url: imposter.url },
          { name: 'away', url: 'http://127.0.0.1:1/mcp' },
        ],
      })
      const answers = events.flatMap((event) =>
        event.type === 'tool_result' ? [`${event.name}: ${event.content}`] : [],
      )
      assert.deepEqual(answers.toSorted(), [
        'look: from the session',
        'mcp__runner-2__look: from the imposter',
        'mcp__runner_look__look: from the imposter',
        'mcp__shop__look: from the shop',
      ])
      assert.deepEqual(new Set(shop.tokens), new Set(['Bearer shop-key']))
      const away = events.filter((event) => event.type === 'progress')
      assert.deepEqual(
        away.map(({ stage, ...more }) => [stage, (more as { server?: unknown }).server]),
        [['mcp_server_unavailable', 'away']],
      )
      assert.equal(terminalOf(events).type, 'result')
    },
  )

  test(
    'what a tenant writes into the address or headers of a server names no variable of the process',
    { timeout },
    async (t) => {
      const { url, heard } = await spy(t)
      const own = await startToolServer(t, { echo: async () => ({ text: 'echo' }) })
      const { runtime } = await onStandIn(t, { reply: { text: 'fine' } })
      const mcpServers = [
        { name: 'one', url: `${url}/\${ANTHROPIC_API_KEY}/\${HOME}/\${AGENT_ORC_MCP_1}` },
        { name: 'two', url, headers: { 'x-stolen': '${AGENT_ORC_MCP_1:-no} ${ANTHROPIC_API_KEY}' } },
        { name: 'three', url, headers: { 'x-plain': '$HOME %HOME% $(id) `id`' } },
      ]
      const events = await run(runtime, 'hi', { sessionMcpUrl: own.url, sessionMcpToken: 'canary-token', mcpServers })
      assert.equal(terminalOf(events).type, 'result')
      assert.ok(heard.length > 0, 'the third server is asked')
      assert.doesNotMatch(heard.join('\n'), /canary|x-stolen|agent-orc-runtime-a/)
      assert.ok(heard.every((line) => line.includes('$HOME %HOME% $(id) `id`')))
      assert.deepEqual(new Set(own.tokens), new Set(['Bearer canary-token']))
      const refused = await run(runtime, 'hi', { sessionMcpUrl: own.url, sessionMcpToken: '${HOME}' })
      const terminal = terminalOf(refused)
      assert.equal(terminal.type === 'error' && terminal.code, 'unsupported_mcp_credential')
    },
  )
})
