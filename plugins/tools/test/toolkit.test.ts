import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { AppError, BootError, capability, definePlugin } from '#kernel'
import { type PlatformTool, PlatformTools, type ToolContext, Toolkit } from '#contracts/tools'
import { fake, testKernel, testToolContext } from '#testing'
import { WaitingDelegations } from '../delegation.ts'
import toolsPlugin from '../index.ts'
import { mostResultBytes } from '#kit'
import { createToolkit } from '../index.ts'

const context = (signal = new AbortController().signal): ToolContext => testToolContext({ signal })

const tool = (execute: PlatformTool['execute'], schema: object = { type: 'object' }): PlatformTool => ({
  name: '',
  description: 'A tool.',
  inputSchema: schema as PlatformTool['inputSchema'],
  execute,
})

async function toolkitOf(t: TestContext, tools: Record<string, PlatformTool>, timeout = '30s') {
  let toolkit: Toolkit | undefined
  const Done = capability<true>('test.done')
  const taker = definePlugin({
    name: 'taker',
    requires: { toolkit: Toolkit },
    provides: { done: Done },
    async setup(ctx) {
      toolkit = ctx.deps.toolkit
      return { done: true as const }
    },
  })
  const kernel = await testKernel(t, [
    { name: 'tools', plugin: toolsPlugin, config: { timeout } },
    fake(PlatformTools, tools),
    taker,
  ])
  return { toolkit: toolkit!, kernel }
}

const echo = tool(async (input) => ({ ok: true, content: JSON.stringify(input) }), {
  type: 'object',
  properties: { n: { type: 'number' }, unit: { type: 'string', default: 'm' } },
  required: ['n'],
  additionalProperties: false,
})

test('lists every tool, its own and those that were added, or those of a list that exist, sorted by name', async (t) => {
  const { toolkit } = await toolkitOf(t, { zeta: echo, alpha: echo, mid: echo })
  assert.deepEqual(
    toolkit.specs().map((s) => s.name),
    ['alpha', 'calculate', 'current_time', 'delegate', 'http_fetch', 'mid', 'search_docs', 'zeta'],
  )
  assert.deepEqual(
    toolkit.specs(['zeta', 'nope', 'alpha', 'zeta']).map((s) => s.name),
    ['alpha', 'zeta'],
  )
  assert.deepEqual(Object.keys(toolkit.specs()[0]!), ['name', 'description', 'inputSchema'])
})

test('input is checked against the schema before the tool sees it', async (t) => {
  const { toolkit } = await toolkitOf(t, { echo })
  const given = { n: 1 }
  assert.deepEqual(await toolkit.invoke('echo', given, context()), { ok: true, content: '{"n":1,"unit":"m"}' })
  assert.deepEqual(given, { n: 1 })
  for (const input of [undefined, {}, { n: 'one' }, { n: 1, extra: 2 }, [1], 'text']) {
    const result = await toolkit.invoke('echo', input, context())
    assert.equal(result.ok, false)
    assert.match(result.content, /^The input of 'echo' is invalid: /)
  }
  assert.match((await toolkit.invoke('echo', { n: 1, extra: 2 }, context())).content, /'extra'/)
})

test('an unknown tool is a failed result, not an exception', async (t) => {
  const { toolkit } = await toolkitOf(t, { echo })
  assert.equal((await toolkit.invoke('__proto__', {}, context())).ok, false)
})

test('a throw becomes a plain sentence that never carries the exception', async (t) => {
  const { toolkit, kernel } = await toolkitOf(t, {
    bug: tool(() => {
      throw new Error('password=hunter2')
    }),
    told: tool(async () => {
      throw new AppError('quota', 429, { message: 'The quota is used up.' })
    }),
  })
  assert.deepEqual(await toolkit.invoke('bug', {}, context()), { ok: false, content: "'bug' failed." })
  assert.deepEqual(await toolkit.invoke('told', {}, context()), { ok: false, content: 'The quota is used up.' })
  assert.ok(kernel.logs.some((line) => line['msg'] === 'a tool threw' && line['tool'] === 'bug'))
})

test('a tool that takes too long is stopped, even one that ignores its signal', async (t) => {
  let signal: AbortSignal | undefined
  const { toolkit } = await toolkitOf(
    t,
    {
      slow: tool((_input, ctx) => {
        signal = ctx.signal
        return new Promise(() => {})
      }),
    },
    '20ms',
  )
  const result = await toolkit.invoke('slow', {}, context())
  assert.deepEqual(result, { ok: false, content: "'slow' took longer than 0.02 s and was stopped." })
  assert.equal(signal!.aborted, true)
})

test('aborting the caller aborts the tool', async (t) => {
  const abort = new AbortController()
  const { toolkit } = await toolkitOf(t, {
    slow: tool((_input, ctx) => {
      setImmediate(() => abort.abort())
      return new Promise((_, reject) => ctx.signal.addEventListener('abort', () => reject(new Error('stopped'))))
    }),
  })
  assert.deepEqual(await toolkit.invoke('slow', {}, context(abort.signal)), {
    ok: false,
    content: "'slow' was stopped.",
  })
  assert.equal((await toolkit.invoke('slow', {}, context(abort.signal))).ok, false)
})

test('output over 256 KiB is cut at a character, with a note', async (t) => {
  const { toolkit } = await toolkitOf(t, {
    wide: tool(async () => ({ ok: true, content: '€'.repeat(200_000) })),
    just: tool(async () => ({ ok: true, content: 'x'.repeat(mostResultBytes) })),
  })
  const { content } = await toolkit.invoke('wide', {}, context())
  assert.ok(Buffer.byteLength(content) <= mostResultBytes)
  assert.ok(content.endsWith('€\n[The output was cut here: it is longer than 256 KiB.]'))
  assert.ok(!content.includes('\ufffd'))
  assert.equal((await toolkit.invoke('just', {}, context())).content.length, mostResultBytes)
})

test('calls are counted by tool and outcome, and an invented name makes no new series', async () => {
  const seen: string[] = []
  const counted = createToolkit(new Map([['echo', echo]]), {
    timeoutMs: 1000,
    delegations: new WaitingDelegations(),
    log: { warn() {} },
    count: (name, outcome) => void seen.push(`${name}:${outcome}`),
  })
  await counted.invoke('echo', { n: 1 }, context())
  await counted.invoke('echo', {}, context())
  await counted.invoke('invented by a model', {}, context())
  assert.deepEqual(seen, ['echo:ok', 'echo:invalid', 'other:unknown'])
})

test('a tool that is added under the name of another one fails the boot', async (t) => {
  await assert.rejects(toolkitOf(t, { calculate: echo }), /a plugin adds a tool 'calculate', but there already is one/)
})

test('a tool whose schema does not compile fails the boot by name', async (t) => {
  await assert.rejects(
    toolkitOf(t, { broken: tool(async () => ({ ok: true, content: '' }), { type: 'nonsense' }) }),
    (e) => {
      assert.ok(e instanceof BootError)
      assert.match(e.message, /the input schema of tool 'broken' does not compile/)
      return true
    },
  )
})

test('a tool that is slow by nature has a limit of its own', async (t) => {
  const waits = (_: object, { signal }: ToolContext) =>
    new Promise<{ ok: boolean; content: string }>((resolve) => {
      signal.addEventListener('abort', () => resolve({ ok: false, content: 'left' }))
    })
  const { toolkit } = await toolkitOf(t, { slow: { ...tool(waits), timeoutMs: 20 } }, '1h')
  const { ok, content } = await toolkit.invoke('slow', {}, context())
  assert.deepEqual([ok, content], [false, "'slow' took longer than 0.02 s and was stopped."])
})
