// A runner with a sandbox whose worker lies, and a model server: what the run is said to have used, and what it may spend.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import type { Counter, Registry } from 'prom-client'
import { definePlugin, everyTenant, linesOf } from '#kernel'
import { costOf } from '#contracts/prices'
import { parseLine, peekType } from '#contracts/run-event'
import { type ExecuteRun, LocalRunners, type RunnerLink } from '#contracts/runner'
import { SandboxProviders, SandboxTenants, sandboxGone } from '#contracts/sandbox'
import { Sidecars } from '#contracts/sidecar'
import { workerPaths, workerVariables } from '#contracts/wire/worker'
import { fake, type ScriptedWorker, startScriptedWorker, testKernel, testProfile, type WorkerScript } from '#testing'
import runnerPlugin from '../plugins/runner/index.ts'
import { RunUsage } from '../plugins/runs/usage.ts'
import sandboxes from '../plugins/sandboxes/index.ts'
import tools from '../plugins/tools/index.ts'

const price = { inputCentsPerMillion: 100, outputCentsPerMillion: 100 }
const prices = { costCents: (usage: Parameters<typeof costOf>[1] & { model: string }) => costOf(price, usage) }
const session = 'sess-00000000-0000abcd'

/** A model server each of whose answers says ten thousand tokens, a cent. */
async function modelServer(t: TestContext): Promise<string> {
  const server = createServer((request, response) => {
    request.resume().once('end', () => {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.end('data: {"choices":[],"usage":{"prompt_tokens":9000,"completion_tokens":1000}}\n\ndata: [DONE]\n\n')
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => void (server.closeAllConnections(), server.close()))
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
}

type Lines = Record<string, unknown>[]

/** `lie` is what the worker does with a run; it calls its model with `ask`, which resolves to 200 or to the code of the error. */
async function runnerWith(
  t: TestContext,
  lie: (ask: () => Promise<unknown>, calculate: () => Promise<unknown>) => ReturnType<NonNullable<WorkerScript['run']>>,
) {
  const boxes = new Map<string, ScriptedWorker>()
  const provider = {
    contract: 'sandbox/1' as const,
    async launch(order: { readonly runnerUrl: string; readonly env: Readonly<Record<string, string>> }) {
      const identity = { url: order.runnerUrl, sessionId: session, token: order.env[workerVariables.token]! }
      const ask = async (): Promise<unknown> => {
        const path = `${workerPaths(session).models('openai')}/chat/completions`
        const reply = await worker.call(path, { method: 'POST', body: '{"model":"m","stream":true}' })
        const text = await reply.text()
        return reply.status === 200 ? 200 : (JSON.parse(text) as { error: string }).error
      }
      const call = { name: 'calculate', input: { expression: '1+1' } }
      const calculate = () => found[0]!.invokeTool('acme', session, call, new AbortController().signal)
      const worker: ScriptedWorker = startScriptedWorker(t, identity, { run: () => lie(ask, calculate) })
      boxes.set('box', worker)
      return { sandboxId: 'box' }
    },
    status: async () => 'running' as const,
    pause: async () => {},
    resume: async () => {
      throw sandboxGone()
    },
    destroy: async () => boxes.get('box')?.stop(),
    list: async () => [],
  }
  const found: RunnerLink[] = []
  let registry: Registry | undefined
  const probe = definePlugin({
    name: 'probe',
    requires: { runners: LocalRunners },
    async setup({ deps, metrics }) {
      found.push(deps.runners.get('local')!)
      registry = metrics
      return {}
    },
  })
  const config = {
    baseUrl: 'http://runner.test',
    signingKey: { current: randomBytes(32).toString('base64') },
    models: { openai: { apiKey: 'k', baseUrl: await modelServer(t) } },
  }
  await testKernel(
    t,
    [
      { name: 'sandboxes', plugin: sandboxes, config },
      fake(SandboxProviders, { box: provider }),
      fake(SandboxTenants, { box: everyTenant }),
      fake(Sidecars, { forRuntime: () => assert.fail('no sidecar'), runtimes: async () => [], slots: () => [] }),
      tools,
      { name: 'runner', plugin: runnerPlugin, config: { drain: '0s' } },
      probe,
    ],
    { listeners: ['runner', 'workers'], listen: true },
  )
  const run = async (budget?: ExecuteRun['budget']): Promise<{ lines: Lines; usage: RunUsage }> => {
    const order = {
      runId: 'run-1',
      sessionId: session,
      prompt: 'hi',
      firstSeq: 2,
      timeoutMs: 60_000,
      create: { profile: testProfile('coder', { workerMode: 'sandbox', model: 'openai/m', tools: ['calculate'] }) },
      ...(budget ? { budget } : {}),
    }
    const usage = new RunUsage(prices)
    const lines: Lines = []
    for await (const chunk of found[0]!.execute('acme', order, new AbortController().signal)) {
      for (const line of linesOf(chunk)) {
        usage.read(peekType(line), line, 2 + lines.length)
        lines.push(parseLine(line)!)
      }
    }
    return { lines, usage }
  }
  const metric = async (name: string) => {
    const { values } = await (registry!.getSingleMetric(name) as Counter).get()
    return values.map(({ labels, value }) => ({ labels, value }))
  }
  return { run, metric }
}

const result = { type: 'result', text: 'done', finishReason: 'stop' } as const

test('a worker that says it used nothing is charged for what it used', async (t) => {
  const { run, metric } = await runnerWith(t, async function* (ask) {
    for (let call = 0; call < 3; call++) {
      assert.equal(await ask(), 200)
      yield { type: 'usage', inputTokens: 1, outputTokens: 0, model: 'builtin/demo', costCents: 0 }
    }
    yield result
  })
  const { lines, usage } = await run()
  assert.equal(lines.at(-1)!['type'], 'result')
  assert.deepEqual(usage.calls, { inputTokens: 27_000, outputTokens: 3_000, model: 'openai/m', costCents: 3 })
  const told = { provider: 'openai', usage: 'told' }
  assert.deepEqual(await metric('runner_model_calls_total'), [{ labels: told, value: 3 }])
  assert.deepEqual(
    (await metric('runner_model_tokens_total')).map(({ labels, value }) => [labels['kind'], value]),
    [
      ['input', 27_000],
      ['output', 3_000],
      ['cached', 0],
    ],
  )
})

test('a worker that calls tools and tells of fewer is charged for all of them; one that tells is charged once', async (t) => {
  const call = (id: string) => ({ type: 'tool_call', id, name: 'calculate', arguments: { expression: '1+1' } }) as const
  for (const [told, end] of [
    [3, result],
    [1, result],
    [0, { type: 'error', code: 'runtime_error', message: 'It broke.' }],
  ] as const) {
    await t.test(`${told} of 3`, async (inner) => {
      const { run } = await runnerWith(inner as TestContext, async function* (_ask, calculate) {
        for (let n = 0; n < 3; n++) {
          if (n < told) yield call(`c${n}`)
          assert.deepEqual(await calculate(), { ok: true, content: '2' })
        }
        yield end
      })
      const { lines, usage } = await run()
      assert.equal(usage.toolCalls, 3)
      const unsaid = lines.filter(({ stage }) => stage === 'unsaid_tool_calls').map(({ count }) => count)
      assert.deepEqual(unsaid, told === 3 ? [] : [3 - told])
      assert.deepEqual(
        lines.map(({ seq }) => seq),
        lines.map((_, i) => i + 2),
      )
    })
  }
})

test('a worker that spends more than its run may is refused, and its run is charged for what it spent', async (t) => {
  const outcomes: unknown[] = []
  const { run, metric } = await runnerWith(t, async function* (ask) {
    for (let call = 0; call < 4; call++) outcomes.push(await ask())
    yield result
  })
  const { usage } = await run({ cents: 2, price })
  assert.deepEqual(outcomes, [200, 200, 'run_budget_spent', 'run_budget_spent'])
  assert.equal(usage.calls!.costCents, 2)
  assert.deepEqual(await metric('runner_model_calls_refused_total'), [
    { labels: { provider: 'openai', reason: 'budget' }, value: 2 },
  ])
})
