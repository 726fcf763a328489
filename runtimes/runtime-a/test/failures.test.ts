import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { createServer } from 'node:net'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import {
  bareSidecar,
  collectRun,
  type EnvelopeFields,
  type ModelReply,
  startModelServer,
  startToolServer,
  terminalOf,
  testEnvelope,
  textOf,
} from '#testing'
import type { RunEvent } from '#contracts/run-event'
import type { Runtime } from '#contracts/runtime'
import { vendorProcesses, vendorProcessOfRun } from './processes.ts'
import { model, onStandIn, runtimeAt, withVendor } from './support.ts'

const timeout = 60_000
const run = (runtime: Runtime, prompt: string, fields: EnvelopeFields = {}, onEvent?: (event: RunEvent) => void) =>
  collectRun(
    bareSidecar(runtime),
    testEnvelope({ ...model, ...fields, profile: { ...model.profile, ...fields.profile }, prompt }),
    undefined,
    onEvent,
  )

/** The last event is this error, nothing in the run quotes what is only said to us, and no process is left. */
function failed(events: readonly RunEvent[], code: string, message: RegExp, retryable?: true): void {
  const terminal = terminalOf(events)
  assert.ok(terminal.type === 'error', `the run did not fail: ${JSON.stringify(terminal)}`)
  assert.equal(terminal.code, code)
  assert.match(terminal.message, message)
  assert.equal(terminal.retryable, retryable)
  assert.doesNotMatch(JSON.stringify(events), /stand-in says|sk-canary|claude|API Error/i)
  assert.deepEqual(vendorProcesses(), [])
}

/** A server that takes connections and never says anything. */
async function silentServer(t: TestContext): Promise<string> {
  const server = createServer((socket) => void socket.on('error', () => {}))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => void server.close())
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

withVendor(() => {
  test('a model server that is not there', { timeout }, async (t) => {
    const events = await run(await runtimeAt(t, 'http://127.0.0.1:1'), 'hi')
    failed(events, 'model_error', /^The model server cannot be reached\.$/, true)
  })

  for (const [status, retryable] of [
    [400, undefined],
    [401, undefined],
    [403, undefined],
    [404, undefined],
    [429, true],
    [500, true],
    [529, true],
  ] as const) {
    test(`a model server that answers ${status}`, { timeout }, async (t) => {
      const { runtime } = await onStandIn(t, { reply: { status } })
      failed(await run(runtime, 'hi'), 'model_error', new RegExp(`^The model server answered ${status}\\.$`), retryable)
    })
  }

  test(
    'a model server that fails inside its answer: what was said stays, and nothing follows it',
    { timeout },
    async (t) => {
      const { runtime } = await onStandIn(t, { reply: { text: 'one two', inBandError: 'stand-in says no' } })
      const events = await run(runtime, 'hi')
      failed(events, 'model_error', /^The model server answered 529\.$/, true)
      assert.equal(textOf(events), 'one two')
    },
  )

  test('an answer that is cut after text was seen is not said again', { timeout }, async (t) => {
    const seen = Promise.withResolvers<void>()
    const broken = { text: 'one two three four', delayMs: 100, resetAfter: 2, resetWhen: seen.promise }
    const replies: ModelReply[] = [broken]
    const { runtime } = await onStandIn(t, { reply: () => replies.shift() ?? { text: 'another answer' } })
    const events = await run(runtime, 'hi', {}, (event) => textOf([event]) !== '' && seen.resolve())
    failed(events, 'model_error', /^The connection to the model server broke\.$/, true)
    // What was under way when the connection broke is lost with it.
    assert.match(textOf(events), /^one (two )?$/)
  })

  test('a call that fails before text was seen is made again', { timeout }, async (t) => {
    const replies: ModelReply[] = [{ status: 500 }, { status: 529 }]
    const { runtime, server } = await onStandIn(t, { reply: () => replies.shift() ?? { text: 'at last' } })
    const events = await run(runtime, 'hi')
    assert.equal(terminalOf(events).type, 'result')
    assert.equal(textOf(events), 'at last')
    assert.equal(server.requests.length, 3)
  })

  test('a tool server that refuses its token ends the run, which would go on without tools', { timeout }, async (t) => {
    const { createServer: http } = await import('node:http')
    const refusing = http(
      (_, response) => void response.writeHead(401).end('{"error":"invalid or missing worker token"}'),
    )
    await new Promise<void>((resolve) => refusing.listen(0, '127.0.0.1', resolve))
    t.after(() => {
      refusing.closeAllConnections()
      refusing.close()
    })
    const { runtime } = await onStandIn(t, { reply: { text: 'I have no tools' } })
    const sessionMcpUrl = `http://127.0.0.1:${(refusing.address() as AddressInfo).port}/mcp`
    const events = await run(runtime, 'hi', { sessionMcpUrl, sessionMcpToken: 'old' })
    failed(events, 'tool_server_unavailable', /^The session's tool server cannot be reached\.$/, true)
    assert.equal(textOf(events), '')
  })

  test('a tool server that is not there, or says nothing, ends the run', { timeout }, async (t) => {
    const { runtime } = await onStandIn(t)
    for (const sessionMcpUrl of ['http://127.0.0.1:1/mcp', `${await silentServer(t)}/mcp`]) {
      failed(await run(runtime, 'hi', { sessionMcpUrl }), 'tool_server_unavailable', /tool server/, true)
    }
  })

  test('more model calls than the profile allows', { timeout }, async (t) => {
    const tools = await startToolServer(t, { echo: async () => ({ text: 'echo' }) })
    let calls = 0
    const reply = () => ({ toolCalls: [{ id: `toolu_${++calls}`, name: 'mcp__runner__echo', arguments: {} }] })
    const { runtime, server } = await onStandIn(t, { reply })
    const events = await run(runtime, 'hi', { sessionMcpUrl: tools.url, profile: { limits: { maxSteps: 2 } } })
    failed(events, 'max_steps', /limit of 2 model calls/)
    assert.equal(server.requests.length, 2)
  })

  test('another provider’s model, and no model server at all', { timeout }, async (t) => {
    const { runtime } = await onStandIn(t)
    failed(await run(runtime, 'hi', { profile: { model: 'openai/gpt' } }), 'unknown_model', /anthropic\/<name>/)
    failed(
      await run(await runtimeAt(t, ''), 'hi', { profile: { model: 'anthropic/--help' } }),
      'unknown_model',
      /--help/,
    )
  })

  test('a process that is killed', { timeout }, async (t) => {
    const { runtime } = await onStandIn(t, { reply: { text: 'one two three', delayMs: 20, hangAfter: 2 } })
    const events = await run(runtime, 'hi', {}, (event) => {
      if (event.type === 'assistant') for (const { pid } of vendorProcesses()) process.kill(pid, 'SIGKILL')
    })
    failed(events, 'runtime_error', /process ended before its answer/, true)
  })

  test('a process that hangs is gone soon after the run was told to stop', { timeout }, async (t) => {
    const { runtime } = await onStandIn(t, { reply: { text: 'one two three', delayMs: 20, hangAfter: 1 } })
    const stop = new AbortController()
    const events = await collectRun(
      bareSidecar(runtime),
      testEnvelope({ ...model, prompt: 'hi' }),
      stop.signal,
      (event) => {
        if (event.type !== 'assistant') return
        for (const { pid } of vendorProcesses()) process.kill(pid, 'SIGSTOP')
        stop.abort()
      },
    )
    assert.deepEqual(vendorProcesses(), [])
    assert.equal(
      events.some(({ type }) => type === 'result' || type === 'error'),
      false,
      'the host ends it',
    )
  })

  test('a run that is stopped while its process starts leaves none', { timeout }, async (t) => {
    const { runtime, server } = await onStandIn(t)
    const stop = new AbortController()
    const running = collectRun(bareSidecar(runtime), testEnvelope({ ...model, prompt: 'hi' }), stop.signal)
    await vendorProcessOfRun()
    stop.abort()
    await running
    assert.deepEqual(vendorProcesses(), [])
    assert.equal(server.requests.length, 0)
  })

  test(
    'a host that is killed takes the process with it before it can call another tool, and the conversations',
    { timeout },
    async (t) => {
      const server = await startModelServer(t, { reply: { text: 'one two three', delayMs: 20, hangAfter: 2 } })
      const folder = await mkdtemp(join(tmpdir(), 'runtime-a-test-'))
      t.after(() => rm(folder, { recursive: true, force: true }))
      const host = spawn(process.execPath, [fileURLToPath(new URL('dies.ts', import.meta.url)), server.url], {
        env: { ...process.env, TMPDIR: folder },
        stdio: ['ignore', 'pipe', 'inherit'],
      })
      const [printed] = (await once(host.stdout, 'data')) as [Buffer]
      assert.match(printed.toString(), /^\d+\n/)
      assert.equal((await readdir(folder)).length, 1)
      host.kill('SIGKILL')
      await server.requests[0]!.ended
      assert.equal(server.requests[0]!.closedEarly, true)
      // The test's own limit ends this if it never comes.
      while ((await readdir(folder)).length > 0) await sleep(20)
    },
  )

  test('a reader that leaves takes the process with it', { timeout }, async (t) => {
    const { runtime, server } = await onStandIn(t, { reply: { text: 'one two three', delayMs: 20, hangAfter: 2 } })
    const stop = new AbortController()
    for await (const event of runtime.run(testEnvelope({ ...model, prompt: 'hi' }), stop.signal)) {
      if (event.type === 'assistant') break
    }
    assert.deepEqual(vendorProcesses(), [])
    await server.requests[0]!.ended
    assert.equal(server.requests[0]!.closedEarly, true)
  })
})
