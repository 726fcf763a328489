import assert from 'node:assert/strict'
import { test } from 'node:test'
import { all, chat, chatStream, terminals } from './client.ts'
import { eventually, forms, startCluster } from './cluster.ts'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('../../', import.meta.url))

interface Wallet {
  readonly balanceCents: number
  readonly heldCents: number
}
interface Run {
  readonly status: string
  readonly error?: { code: string; message: string }
  readonly costCents?: number
}

for (const form of forms) {
  test(`${form}: credit and budgets bound what chats and runs spend, and the ledger says what they cost`, async (t) => {
    // A word of the stand-in costs a cent.
    const role = form === 'single' ? 'dev' : 'conductor'
    const folder = await mkdtemp(join(tmpdir(), 'ao-billing-'))
    t.after(() => rm(folder, { recursive: true }))
    const file = join(folder, `${role}.yaml`)
    const text = await readFile(join(root, `config/${role}.yaml`), 'utf8')
    const price = 'openai/stand-in: { inputCentsPerMillion: 0, outputCentsPerMillion: 1000000 }'
    await writeFile(file, text.replace(/^ {2}prices:\n {4}models:\n/m, `$&      ${price}\n`))
    const env = { AGENT_ORC_BILLING: 'ledger', AGENT_ORC_ADMIN_TENANT: 'default' }
    const {
      api,
      agent: publish,
      model,
    } = await startCluster(t, form, { env, files: { [role]: file } }).then((cluster) => ({
      api: cluster.api.bind(cluster),
      agent: cluster.agent.bind(cluster),
      model: cluster.model,
    }))
    const words = (count: number) => ({ text: Array.from({ length: count }, () => 'word').join(' ') })
    // The call after the one that passes the cap: it may have been made when the run is ended, or not.
    const slow = { ...words(2), delayMs: 1_000 }
    const wallet = async () => (await api<Wallet>('GET', '/api/billing/wallet')).body
    const refused = await api<Record<string, string>>('POST', '/api/profiles', {
      name: 'early',
      model: 'openai/stand-in',
    })
    assert.equal(refused.status, 201)
    const early = await api<Record<string, string>>('POST', '/api/runs', { profile: 'early', prompt: 'Hello' })
    assert.deepEqual(
      [early.status, early.body['error'], early.body['checkout_path']],
      [402, 'registration_pending', '/api/billing/checkout'],
    )
    assert.equal((await api('POST', '/api/billing/grants', { tenantId: 'default', cents: 11 })).status, 201)
    const agent = await publish('billed')

    model.next(words(2))
    const [end] = terminals(await all(await chatStream(agent, { message: 'Hello' })))
    assert.equal(end?.event, 'done', JSON.stringify(end))
    await eventually('the chat is charged', async () => (await wallet()).heldCents === 0)
    assert.equal((await wallet()).balanceCents, 9)

    // A cap ends the run that passes it, says which one it is, and raised it lets the session go on.
    const budget = { scope: 'profile', subject: 'billed', per: 'day', capCents: 4 }
    assert.equal((await api('PUT', '/api/billing/budgets', { budgets: [budget] })).status, 200)
    model.next({ ...words(6), toolCalls: [{ name: 'calculate', arguments: { expression: '1+1' } }] }, slow)
    assert.equal(
      (await api('PUT', '/api/profiles/billed', { model: 'openai/stand-in', tools: ['calculate'] })).status,
      200,
    )
    const ended = async (body: object) => {
      const started = await api<Record<string, string>>('POST', '/api/runs', {
        profile: 'billed',
        prompt: 'Hello',
        ...body,
      })
      assert.equal(started.status, 202, JSON.stringify(started.body))
      const { runId, sessionId } = started.body
      let run: Run | undefined
      await eventually('the run is over', async () => {
        run = (await api<Run>('GET', `/api/runs/${runId!}`)).body
        return run.status !== 'running'
      })
      return { sessionId: sessionId!, ...run! }
    }
    const over = await ended({})
    assert.deepEqual([over.status, over.error?.code], ['error', 'budget_exceeded'])
    assert.match(over.error!.message, /profile 'billed' per day, 4 cents/)
    const next = await api<Record<string, unknown>>('POST', '/api/runs', {
      profile: 'billed',
      prompt: 'x',
      sessionId: over.sessionId,
    })
    assert.deepEqual([next.status, next.body['error']], [402, 'budget_exceeded'])
    const usage = await api<{ budgetAlerts: { percent: number }[] }>('GET', '/api/usage')
    assert.deepEqual(
      usage.body.budgetAlerts.map(({ percent }) => percent),
      [150],
    )
    assert.equal((await api('PUT', '/api/billing/budgets', { budgets: [{ ...budget, capCents: 100 }] })).status, 200)
    model.next(slow)
    const on = await ended({ sessionId: over.sessionId })
    assert.deepEqual([on.status, on.sessionId, on.costCents], ['ok', over.sessionId, 2])

    model.next(slow)
    assert.equal((await chat(agent, { message: 'Hello' })).status, 200)
    await eventually('the chat is charged', async () => (await wallet()).heldCents === 0)
    assert.equal((await wallet()).balanceCents, -1)
    const broke = await chat(agent, { message: 'Hello' })
    assert.deepEqual(
      [broke.status, broke.body['error'], broke.body['checkout_path']],
      [402, 'credits_exhausted', '/api/billing/checkout'],
    )
  })
}
