import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AppError } from '#kernel'
import { collectRun, terminalOf, testEnvelope } from '#testing'
import { hostOf, says, scripted } from './support.ts'

test('a runtime that misses something is not offered, and says what in its runs, until it is there', async (t) => {
  let missing: string | undefined = 'other needs the package x: install it.'
  const other = scripted(function* () {
    if (missing !== undefined) throw new AppError('runtime_not_installed', 503, { message: missing })
    yield says('here')
    yield { type: 'result', text: 'here', finishReason: 'stop' }
  })
  Object.defineProperty(other, 'missing', { get: () => missing })
  const { link } = await hostOf(t, { general: scripted(() => []), other })
  assert.deepEqual((await link.health()).runtimes, ['general'])
  assert.deepEqual((await link.health()).missing, { other: missing })
  const run = async () => terminalOf(await collectRun(link, testEnvelope({ profile: { runtime: 'other' } })))
  const { type, code, message } = (await run()) as unknown as Record<string, unknown>
  assert.deepEqual({ type, code, message }, { type: 'error', code: 'runtime_not_installed', message: missing })
  missing = undefined
  assert.deepEqual((await link.health()).runtimes, ['general', 'other'])
  assert.equal((await link.health()).missing, undefined)
  assert.equal((await run()).type, 'result')
})

test('a run on a model that its tenant may not use is refused where the key is, and never reaches the runtime', async (t) => {
  const ran: string[] = []
  const general = scripted(function* (prompt) {
    ran.push(prompt)
    yield { type: 'result', text: 'here', finishReason: 'stop' }
  })
  const only = (id: string) => ({ allows: (asked: string) => asked === id, empty: false })
  const { link } = await hostOf(t, { general }, { models: { openai: only('acme'), anthropic: only('globex') } })
  const run = (tenantId: string, model: string) =>
    collectRun(link, testEnvelope({ tenantId, prompt: `${tenantId} ${model}`, profile: { model } })).then(terminalOf)
  for (const [tenant, model] of [
    ['globex', 'openai/gpt-5'],
    ['initech', 'openai/gpt-5'],
    ['acme', 'anthropic/claude'],
  ] as const) {
    await assert.rejects(run(tenant, model), { code: 'unknown_model', status: 400 }, `${tenant} ${model}`)
  }
  await assert.rejects(run('globex', 'openai/gpt-5'), {
    message: "There is no model 'openai/gpt-5' for this tenant; it may use: anthropic/*.",
  })
  assert.equal((await run('acme', 'openai/gpt-5')).type, 'result')
  assert.equal((await run('initech', 'other/model')).type, 'result')
  assert.deepEqual(ran, ['acme openai/gpt-5', 'initech other/model'])
})
