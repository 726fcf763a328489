import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pino } from 'pino'
import { AppError } from '#kernel'
import type { Billing } from '#contracts/billing'
import { Funds } from '../funds.ts'

const claim = { tenantId: 'acme', runId: 'r', sessionId: 's', epoch: 1 }
const log = pino({ level: 'silent' })

test('more is asked for once for each model call, before what is held is spent; a refusal ends the run with its sentence', async () => {
  const asked: number[] = []
  const answers: (number | AppError | Error)[] = [
    2_000_000,
    new Error('away'),
    3_000_000,
    new AppError('budget_exceeded', 402, { message: 'No more.' }),
  ]
  const told: string[] = []
  const billing = {
    reserveMicrocents: 300_000,
    extend: async (_tenant: string, _run: string, spent: number) => {
      asked.push(spent)
      const answer = answers.shift()!
      if (answer instanceof Error && !(answer instanceof AppError)) throw answer
      return answer
    },
  } as unknown as Billing
  const funds = new Funds({ billing, log }, claim, 1_000_000, (sentence) => told.push(sentence))
  // More than the reserve is left of what is held.
  for (const cents of [0, 0.5, 0.69]) assert.equal(funds.look(cents), undefined)
  await funds.look(0.7)
  // Of the 2 cents that are held now nothing is asked, and nothing is asked twice.
  assert.equal(funds.look(0.7), undefined)
  assert.equal(funds.look(1.5), undefined)
  await funds.look(1.7)
  await funds.look(1.8)
  assert.deepEqual(told, [])
  await funds.look(3.5)
  assert.deepEqual([asked, told], [[700_000, 1_700_000, 1_800_000, 3_500_000], ['No more.']])
})

test('what is held is not known once a delegated run has taken from it, or another process has begun the run', async () => {
  const asked: number[] = []
  const billing = {
    reserveMicrocents: 0,
    refusesUnpriced: true,
    extend: async (...[, , spent]: [string, string, number]) => asked.push(spent) && Infinity,
  } as unknown as Billing
  const funds = new Funds({ billing, log }, claim, 1_000_000, assert.fail)
  assert.equal(funds.look(0.1), undefined)
  funds.share()
  await funds.look(0.1)
  assert.equal(funds.look(50), undefined)
  await new Funds({ billing, log }, claim, undefined, assert.fail).look(0.2)
  assert.deepEqual(asked, [100_000, 200_000])
  assert.equal(new Funds({ billing: undefined, log }, claim, undefined, assert.fail).look(5, 'a/new'), undefined)
  const told: string[] = []
  const strict = new Funds({ billing, log }, claim, 1_000_000, (sentence) => told.push(sentence))
  assert.equal(strict.look(0.1, 'a/new'), undefined)
  assert.match(told.join(), /'a\/new' has no price on this server/)
})
