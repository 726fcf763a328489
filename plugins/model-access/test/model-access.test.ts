import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { ModelAccess } from '#contracts/model-access'
import { testKernel } from '#testing'
import modelAccess from '../index.ts'

async function accessWith(t: TestContext, models: object): Promise<ModelAccess> {
  const found: ModelAccess[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { access: ModelAccess },
    setup: async ({ deps }) => (found.push(deps.access), {}),
  })
  await testKernel(t, [{ name: 'model-access', plugin: modelAccess, config: { models } }, probe], { listeners: [] })
  return found[0]!
}

test('a model is for the tenants of the longest line that it matches, and for every tenant where there is none', async (t) => {
  const access = await accessWith(t, {
    'openai/*': { tenants: ['acme'] },
    'openai/gpt-5-mini*': { tenants: '*' },
    'openai/gpt-5-mini-secret': { tenants: [] },
    'anthropic/claude': { tenants: ['acme, globex'] },
  })
  const may = (tenant: string, model: string): boolean => {
    try {
      return access.check(tenant, model) === undefined
    } catch (error) {
      assert.equal((error as { code: string }).code, 'unknown_model')
      return false
    }
  }
  for (const [model, tenants] of [
    ['openai/gpt-5', ['acme']],
    ['openai/gpt-5-mini-2', ['acme', 'globex', 'initech']],
    ['openai/gpt-5-mini-secret', []],
    ['anthropic/claude', ['acme', 'globex']],
    ['anthropic/claude-2', ['acme', 'globex', 'initech']],
    ['builtin/demo', ['acme', 'globex', 'initech']],
  ] as const) {
    assert.deepEqual(
      ['acme', 'globex', 'initech'].filter((tenant) => may(tenant, model)),
      tenants,
      model,
    )
  }
  assert.throws(() => access.check('globex', 'openai/gpt-5'), {
    status: 400,
    message:
      "There is no model 'openai/gpt-5' for this tenant; it may use: anthropic/claude, openai/gpt-5-mini*, every model that is not in the list of the operator.",
  })
})

test('a line without tenants is refused, with what to write', async (t) => {
  await assert.rejects(
    accessWith(t, { 'openai/*': {} }),
    /models\.openai\/\*\.tenants is required: write '\*' for every/,
  )
})
