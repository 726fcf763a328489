import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { startToolServer, terminalOf } from '#testing'
import { codexProgram } from '../app-server.ts'
import { switches } from '../launch.ts'
import { bodyOf, skip, stage } from './support.ts'

/** Codex's own, over what the session's server offers to read. */
const overTheServer = ['list_mcp_resources', 'list_mcp_resource_templates', 'read_mcp_resource']

test('a model is offered the tools of the session and no others', { skip }, async (t) => {
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  // Names that Codex knows: to these models it would give tools of its own.
  for (const name of ['stand-in', 'gpt-6.1-sol', 'gpt-5.6-luna', 'gpt-5.5', 'gpt-5-codex']) {
    const { run, models } = await stage(t)
    await run('hi', { sessionMcpUrl: tools.url, profile: { model: `openai/${name}` } })
    const offered = bodyOf(models.requests[0]!).tools!.map((tool) =>
      [tool.name, ...(tool.tools ?? []).map((one) => one.name)].join(' '),
    )
    assert.deepEqual(offered.toSorted(), [...overTheServer, 'mcp__runner look'].toSorted(), name)
  }
  const { run, models } = await stage(t)
  await run('hi')
  assert.deepEqual(bodyOf(models.requests[0]!).tools ?? [], [])
})

test('a model that calls tools of the machine all the same gets nothing done', { skip }, async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'agent-orc-test-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  const marker = join(folder, 'marker')
  const script = `echo executed > ${marker}`
  const patch = `*** Begin Patch\n*** Add File: ${marker}\n+executed\n*** End Patch`
  const calls = {
    shell: { command: ['sh', '-c', script] },
    local_shell: { command: ['sh', '-c', script] },
    shell_command: { command: script },
    exec_command: { cmd: script },
    exec: { input: script },
    write_stdin: { session_id: 1, chars: script },
    apply_patch: { input: patch },
    view_image: { path: '/etc/hostname' },
    read_file: { path: '/etc/hostname' },
    list_dir: { path: '/' },
    spawn_agent: { message: script },
    update_plan: { plan: [] },
    request_user_input: { questions: [] },
    web_search: { query: 'x' },
  }
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  for (const again of [false, true]) {
    const { run, models } = await stage(t)
    // A conversation that is taken up again comes with what it was begun with.
    if (again) await run('hello', { sessionId: 's', sessionMcpUrl: tools.url })
    const asked = models.requests.length
    models.next(
      {
        toolCalls: Object.entries(calls).map(([name, args]) => ({ id: name, name, arguments: args })),
        items: [
          {
            type: 'local_shell_call',
            call_id: 'l',
            status: 'completed',
            action: { type: 'exec', command: ['sh', '-c', script] },
          },
          { type: 'custom_tool_call', call_id: 'p', name: 'apply_patch', input: patch },
          {
            type: 'custom_tool_call',
            call_id: 'e',
            name: 'exec',
            input: `await tools.exec_command({ cmd: ${JSON.stringify(script)} })`,
          },
        ],
      },
      { text: 'done' },
    )
    const events = await run('go', { sessionId: 's', sessionMcpUrl: tools.url })
    assert.equal(terminalOf(events).type, 'result')
    assert.equal(existsSync(marker), false)
    assert.deepEqual(
      events.filter(({ type }) => type === 'tool_call' || type === 'tool_result'),
      [],
    )
    // The model hears of each that there is no such tool, or that it was not executed.
    const outputs = bodyOf(models.requests[asked + 1]!).input.filter(({ type }) => type.endsWith('_output'))
    assert.equal(outputs.length, Object.keys(calls).length + 3)
    for (const { output } of outputs) assert.match(String(output), /^unsupported (custom tool )?call: |^aborted$/)
  }
  assert.deepEqual(await readdir(folder), [])
  assert.deepEqual(tools.calls, [])
})

test('nothing that Codex has on by itself is left on, but what has no switch and no effect', { skip }, async (t) => {
  const home = await mkdtemp(join(tmpdir(), 'agent-orc-test-'))
  t.after(() => rm(home, { recursive: true, force: true }))
  const { stdout } = await promisify(execFile)(codexProgram().path(), ['features', 'list', ...switches()], {
    env: { CODEX_HOME: home, HOME: home },
  })
  const left = stdout.split('\n').flatMap((line) => {
    const [name, ...rest] = line.split(/\s+/)
    return rest.at(-1) === 'true' && !rest.includes('removed') ? [name] : []
  })
  // unified_exec is how a shell would be run, if there were one.
  assert.deepEqual(left.toSorted(), ['instant_interrupt', 'omit_app_server_notification_media', 'unified_exec'])
})

test('every switch is one that this Codex knows', { skip }, async (t) => {
  const home = await mkdtemp(join(tmpdir(), 'agent-orc-test-'))
  t.after(() => rm(home, { recursive: true, force: true }))
  const started = promisify(execFile)(codexProgram().path(), ['app-server', '--strict-config', ...switches()], {
    env: { CODEX_HOME: home, HOME: home },
  })
  started.child.stdin!.end()
  await started
})
