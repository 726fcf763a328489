import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { gunzipSync } from 'node:zlib'
import {
  bareSidecar,
  collectRun,
  type EnvelopeFields,
  type ModelReply,
  startToolServer,
  terminalOf,
  testEnvelope,
} from '#testing'
import type { RunEvent } from '#contracts/run-event'
import type { Runtime, StateBundle } from '#contracts/runtime'
import { isAppError } from '#kernel'
import { pack } from '#kit/archive'
import { createConversations } from '../conversations.ts'
import { createRoot } from '../root.ts'
import { vendorProcesses } from './processes.ts'
import { conversation, model, onStandIn, withVendor } from './support.ts'

const timeout = 60_000
const sessionId = 'sess-00000000-0000000a'
const run = (
  runtime: Runtime,
  prompt: string,
  fields: EnvelopeFields = {},
  signal?: AbortSignal,
  onEvent?: (event: RunEvent) => void,
): Promise<RunEvent[]> =>
  collectRun(bareSidecar(runtime), testEnvelope({ sessionId, ...model, ...fields, prompt }), signal, onEvent)

/** Stops a run at its first words. */
async function interrupt(runtime: Runtime, prompt: string, fields: EnvelopeFields = {}): Promise<void> {
  const stop = new AbortController()
  await run(runtime, prompt, fields, stop.signal, ({ type }) => type === 'assistant' && stop.abort())
}

const exported = async (runtime: Runtime): Promise<StateBundle> =>
  (await runtime.exportState!(sessionId)) ?? assert.fail('the session has no state')

const hanging: ModelReply = { text: 'one two three', delayMs: 20, hangAfter: 2 }

withVendor(() => {
  test(
    'the bundle is the one file that holds the conversation, and goes on on another host',
    { timeout },
    async (t) => {
      const here = await onStandIn(t, { reply: { text: 'noted' } })
      const tools = await startToolServer(t, { echo: async () => ({ text: 'echo' }) })
      const token = { sessionMcpUrl: tools.url, sessionMcpToken: 'canary-token' }
      await run(here.runtime, 'remember marmalade', token)
      const events = await run(here.runtime, 'and butter', token)
      const bundle = await exported(here.runtime)
      const id = events.flatMap((event) => (event.type === 'session_init' ? [event.runtimeSessionId] : []))
      assert.deepEqual(id, [bundle.runtimeSessionId])
      assert.equal(bundle.contentType, 'application/gzip')
      const tar = gunzipSync(bundle.bytes).toString('latin1')
      assert.deepEqual(tar.match(/projects\/[^\0]+/g), [`projects/session/${bundle.runtimeSessionId}.jsonl`])
      assert.doesNotMatch(tar, /canary|x-api-key/)

      const there = await onStandIn(t, { reply: { text: 'marmalade and butter' } })
      assert.equal(there.runtime.has!(sessionId), false)
      await there.runtime.hydrate!(sessionId, bundle)
      assert.equal(there.runtime.has!(sessionId), true)
      assert.deepEqual(await exported(there.runtime), bundle)
      await run(there.runtime, 'what was it?', { runtimeSessionId: bundle.runtimeSessionId! })
      assert.deepEqual(conversation(there.server.requests.at(-1)!.body), [
        'user: remember marmalade',
        'assistant: noted',
        'user: and butter',
        'assistant: noted',
        'user: what was it?',
      ])
    },
  )

  test('what a stopped run had said stays, and its tool calls with their results', { timeout }, async (t) => {
    const tools = await startToolServer(t, { echo: async () => ({ text: 'echo' }) })
    const replies: ModelReply[] = [
      { toolCalls: [{ id: 'toolu_1', name: 'mcp__runner__echo', arguments: {} }] },
      hanging,
      { text: 'fine' },
    ]
    const { runtime, server } = await onStandIn(t, { reply: () => replies.shift()! })
    await interrupt(runtime, 'first', { sessionMcpUrl: tools.url })
    assert.deepEqual(vendorProcesses(), [])
    assert.equal(server.requests.at(-1)!.closedEarly, true)
    await run(runtime, 'second')
    const lines = conversation(server.requests.at(-1)!.body)
    assert.equal(lines[0], 'user: first')
    assert.equal(lines[1], 'assistant: [tool_use]')
    assert.match(lines.join('\n'), /assistant: one (two )?\n/)
    assert.equal(lines.at(-1), 'user: second')
  })

  test('a run that failed before anything was said leaves nothing, and the session goes on', { timeout }, async (t) => {
    const replies: ModelReply[] = [{ status: 401 }, { text: 'one' }, { status: 400 }, { text: 'two' }]
    const { runtime, server } = await onStandIn(t, { reply: () => replies.shift() ?? { status: 400 } })
    const kept = replies.splice(1)
    await run(runtime, 'failing first')
    assert.equal(runtime.has!(sessionId), false)
    assert.equal(await runtime.exportState!(sessionId), undefined)
    replies.push(kept[0]!)
    await run(runtime, 'first')
    const before = await exported(runtime)
    await run(runtime, 'failing second')
    assert.deepEqual(await exported(runtime), before)
    replies.push(kept[2]!)
    assert.equal(terminalOf(await run(runtime, 'second')).type, 'result')
    assert.deepEqual(conversation(server.requests.at(-1)!.body), ['user: first', 'assistant: one', 'user: second'])
  })

  test('another attempt of a run does not find the former one', { timeout }, async (t) => {
    const replies: ModelReply[] = [hanging, { text: 'noted' }, hanging, { text: 'fine' }]
    const { runtime, server } = await onStandIn(t, { reply: () => replies.shift()! })
    await interrupt(runtime, 'first', { runId: 'run_1' })
    assert.equal(terminalOf(await run(runtime, 'first', { runId: 'run_1', attempt: 2 })).type, 'result')
    assert.deepEqual(conversation(server.requests.at(-1)!.body), ['user: first'])
    await interrupt(runtime, 'second', { runId: 'run_2' })
    await run(runtime, 'second', { runId: 'run_2', attempt: 2 })
    assert.deepEqual(conversation(server.requests.at(-1)!.body), ['user: first', 'assistant: noted', 'user: second'])
  })

  test('a process that was killed costs its own turn at most', { timeout }, async (t) => {
    const replies: ModelReply[] = [{ text: 'noted' }, hanging, { text: 'fine' }]
    const { runtime, server } = await onStandIn(t, { reply: () => replies.shift()! })
    await run(runtime, 'first')
    await run(runtime, 'second', {}, undefined, ({ type }) => {
      if (type === 'assistant') for (const { pid } of vendorProcesses()) process.kill(pid, 'SIGKILL')
    })
    assert.equal(terminalOf(await run(runtime, 'third')).type, 'result')
    const lines = conversation(server.requests.at(-1)!.body)
    assert.deepEqual([...lines.slice(0, 2), lines.at(-1)], ['user: first', 'assistant: noted', 'user: third'])
  })

  test('the state of a session whose run is under way is what it was before', { timeout }, async (t) => {
    const replies: ModelReply[] = [{ text: 'noted' }, hanging]
    const { runtime } = await onStandIn(t, { reply: () => replies.shift()! })
    await run(runtime, 'first')
    const before = await exported(runtime)
    const stop = new AbortController()
    let during: Promise<StateBundle> | undefined
    await run(runtime, 'second', {}, stop.signal, ({ type }) => {
      if (type === 'assistant') during ??= exported(runtime).finally(() => stop.abort())
    })
    assert.deepEqual(await during, before)
  })

  test('a forgotten session is gone, and a new one of its name knows nothing', { timeout }, async (t) => {
    const { runtime, server } = await onStandIn(t, { reply: { text: 'noted' } })
    await run(runtime, 'first')
    await runtime.forget!(sessionId)
    assert.equal(runtime.has!(sessionId), false)
    assert.equal(await runtime.exportState!(sessionId), undefined)
    await run(runtime, 'second')
    assert.deepEqual(conversation(server.requests.at(-1)!.body), ['user: second'])
  })

  test('a conversation whose file was swept away is missing, and can be brought back', { timeout }, async (t) => {
    const folder = await mkdtemp(join(tmpdir(), 'runtime-a-test-'))
    t.after(() => rm(folder, { recursive: true, force: true }))
    const root = createRoot(folder)
    const conversations = createConversations(root)
    const { runtime } = await onStandIn(t, { reply: { text: 'noted' } })
    await run(runtime, 'first')
    const bundle = await exported(runtime)
    await conversations.hydrate(sessionId, bundle)
    assert.equal(conversations.has(sessionId), true)
    await rm(root.path, { recursive: true })
    assert.equal(conversations.has(sessionId), false)
    await conversations.hydrate(sessionId, bundle)
    assert.equal(conversations.has(sessionId), true)
    assert.equal((await conversations.begin({ tenantId: 'acme', sessionId, runId: 'run_1' })).resumes, true)
    await root.remove()
  })

  test(
    'an archive of something else, or of nothing that was said, is refused and changes nothing',
    { timeout },
    async (t) => {
      const { runtime } = await onStandIn(t, { reply: { text: 'noted' } })
      await run(runtime, 'first')
      const before = await exported(runtime)
      const folder = await mkdtemp(join(tmpdir(), 'runtime-a-test-'))
      t.after(() => rm(folder, { recursive: true, force: true }))
      await mkdir(join(folder, 'projects/session'), { recursive: true })
      const [one, two] = ['1', '2'].map(
        (digit) => `projects/session/${digit.repeat(8)}-1111-4111-8111-${digit.repeat(12)}.jsonl`,
      )
      const line = '{"type":"user","message":{"role":"user","content":"hi"}}\n'
      const bundleOf = async (files: Record<string, string>): Promise<StateBundle> => {
        for (const [name, text] of Object.entries(files)) await writeFile(join(folder, name), text)
        return { bytes: await pack(folder, Object.keys(files)), contentType: 'application/gzip' }
      }
      const wrong = [
        { [one!]: line, [two!]: line },
        { [one!]: '' },
        { [one!]: '{"type":"summary"}\n' },
        { [one!]: `${line}{"half` },
        { 'projects/session/settings.json': line },
        { '.claude.json': line },
      ]
      for (const files of wrong) {
        const bundle = await bundleOf(files)
        await assert.rejects(
          runtime.hydrate!(sessionId, bundle),
          (error) => isAppError(error) && error.status === 400 && error.code === 'invalid_state',
          Object.keys(files).join(),
        )
      }
      await assert.rejects(runtime.hydrate!('../escape', await bundleOf({ [one!]: line })))
      assert.deepEqual(await exported(runtime), before)
    },
  )
})
