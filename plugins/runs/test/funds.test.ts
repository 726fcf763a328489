import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pino } from 'pino'
import { AppError } from '#kernel'
import type { Billing } from '#contracts/billing'
import type { Prices } from '#contracts/prices'
import type { SandboxUse } from '#contracts/run-store'
import { Funds } from '../funds.ts'

const claim = { tenantId: 'acme', runId: 'r', sessionId: 's', epoch: 1 }
const log = pino({ level: 'silent' })

/** The money of a run in which each look is after a model call, by which it has spent so many cents in all. */
function spending(
  billing: Partial<Billing>,
  { held, prices, told = [] }: { held?: number; prices?: Pick<Prices, 'services'>; told?: string[] } = {},
) {
  const usage = {
    ownCents: 0,
    modelCalls: 0,
    toolCalls: 0,
    unpriced: undefined as string | undefined,
    sandbox: undefined as SandboxUse | undefined,
  }
  const deps = { billing: { reserveMicrocents: 0, ...billing } as Billing, prices, log }
  const run = { usage, beganAt: Date.now() - 100_000, onExceeded: (why: string) => void told.push(why) }
  const funds = new Funds(deps, { claim, ...(held === undefined ? {} : { held }) }, run)
  const look = (cents: number, unpriced?: string) => {
    Object.assign(usage, { ownCents: cents, unpriced, modelCalls: usage.modelCalls + 1 })
    return funds.look()
  }
  return { funds, usage, look }
}

test('more is asked for once for each model call, before what is held is spent; a refusal ends the run with its sentence', async () => {
  const asked: number[] = []
  const answers: (number | AppError | Error)[] = [
    2_000_000,
    new Error('away'),
    3_000_000,
    new AppError('budget_exceeded', 402, { message: 'No more.' }),
  ]
  const told: string[] = []
  const extend: Billing['extend'] = async (_tenant, _run, spent) => {
    asked.push(spent)
    const answer = answers.shift()!
    if (answer instanceof Error && !(answer instanceof AppError)) throw answer
    return answer
  }
  const { funds, look } = spending({ reserveMicrocents: 300_000, extend }, { held: 1_000_000, told })
  // More than the reserve is left of what is held.
  for (const cents of [0, 0.5, 0.69]) assert.equal(look(cents), undefined)
  await look(0.7)
  // Of the 2 cents that are held now nothing is asked, and nothing is asked twice.
  assert.equal(look(1.5), undefined)
  await look(1.7)
  assert.equal(funds.look(), undefined)
  await look(1.8)
  assert.deepEqual(told, [])
  await look(3.5)
  assert.deepEqual([asked, told], [[700_000, 1_700_000, 1_800_000, 3_500_000], ['No more.']])
})

test('what is held is not known once a delegated run has taken from it, or another process has begun the run', async () => {
  const asked: number[] = []
  const extend: Billing['extend'] = async (...[, , spent]) => asked.push(spent) && Infinity
  const begun = spending({ extend }, { held: 1_000_000 })
  assert.equal(begun.look(0.1), undefined)
  assert.equal(begun.funds.share(), 0.1)
  await begun.look(0.1)
  assert.equal(begun.look(50), undefined)
  await spending({ extend }).look(0.2)
  assert.deepEqual(asked, [100_000, 200_000])
  const told: string[] = []
  const strict = spending({ extend, refusesUnpriced: true }, { held: 1_000_000, told })
  assert.equal(strict.look(0.1, 'a/new'), undefined)
  assert.match(told.join(), /'a\/new' has no price on this server/)
})

test('tool calls and the seconds of a sandbox count as they will be charged, also where models are free', async () => {
  const asked: number[] = []
  const extend: Billing['extend'] = async (...[, , spent]) => asked.push(spent)
  const services = { toolCall: 250_000, sandboxSecond: 10_000, storedGibDay: 0 }
  const { usage, look, funds } = spending({ extend }, { held: 1_000_000, prices: { services } })
  usage.toolCalls = 3
  assert.equal(look(0), undefined)
  usage.toolCalls = 4
  await funds.look()
  assert.deepEqual(asked, [1_000_000])
  // Idle for 50 seconds before the run, which began 100 seconds ago.
  usage.sandbox = { idleSeconds: 50 }
  await look(0.5)
  assert.ok(asked[1]! >= 3_000_000, `${asked[1]}`)
})
