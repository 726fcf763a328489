import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testToolContext } from '#testing'
import { createCalculate } from '../builtin/calculate.ts'

const calculate = createCalculate()
const value = async (expression: string): Promise<string> => {
  const result = await calculate.execute({ expression }, testToolContext())
  assert.equal(result.ok, true)
  return result.content
}

test('calculates', async () => {
  const expected: Record<string, string> = {
    '2 + 3 * 4': '14',
    '(17.5 + 3) * 2^10 / 4': '5248',
    '0.1 + 0.2': '0.3',
    '1/3': '0.333333333333333',
    '-2^2': '-4',
    '17 mod 5': '2',
    '5!': '120',
    '5 + 10%': '5.5',
    'sqrt(16) + cbrt(27)': '7',
    'round(pi, 4)': '3.1416',
    'log(8, 2)': '3',
    'max(1, 7, 3) - min(4, 2)': '5',
    '2 pi / pi': '2',
    '3 > 2 ? 10 : 20': '10',
    '1 < 2 < 3': 'true',
    '2e3': '2000',
    '1/0': 'Infinity',
    '2^1000000': 'Infinity',
    '10^20': '1e+20',
    '12345678 * 87654321': '1082152022374638',
    '2^53 - 1': '9007199254740991',
    '-(2^53 - 1)': '-9007199254740991',
  }
  for (const [expression, result] of Object.entries(expected)) assert.equal(await value(expression), result, expression)
})

const refused = [
  'import({})',
  'evaluate("1")',
  'parse("1")',
  'createUnit("x")',
  'simplify("1")',
  'config({})',
  'cos.constructor("return process")()',
  '"a".constructor',
  '[1, 2]',
  '1:100000000',
  'range(0, 1e9)',
  'ones(1e5, 1e5)',
  'f(x) = f(x)',
  'a = 3',
  '1; 2',
  '{a: 1}',
  'combinations(1e9, 5e8)',
  'isPrime(2^53)',
  'random()',
  '5 cm',
  '5 m to km',
  '"text"',
  'null',
  'x',
  'sqrt(-1)',
  '0/0',
  '(-8)^(1/3)',
  'i',
  "5'",
  '6 & 3',
  '2 .* 3',
  '1 << 3',
  '2 +',
  '',
  '5(3)(2).x',
  'pi(3)',
  '(sqrt)(4)',
  '__proto__',
  'constructor',
  'toString()',
]
test('refuses everything that is not arithmetic on real numbers, in a plain sentence', async () => {
  for (const expression of refused) {
    await assert.rejects(
      calculate.execute({ expression }, testToolContext()).then((r) => {
        throw new Error(`${expression} answered ${r.content}`)
      }),
      (error: Error & { code?: string }) => error.code === 'calculation' || assert.fail(error.message),
    )
  }
})

test('no expression of a thousand characters keeps the runner busy', { timeout: 30_000 }, async () => {
  const hostile = [
    `${'('.repeat(499)}1${')'.repeat(499)}`,
    `${'-'.repeat(999)}1`,
    Array(500).fill('9').join('^'),
    `9${'!'.repeat(999)}`,
    `${'factorial('.repeat(90)}9${')'.repeat(90)}`,
    `${'1 ? '.repeat(150)}1${' : 1'.repeat(150)}`,
    '9'.repeat(1_000),
    '1e308*'.repeat(160) + '1',
    'gcd(123456789, 987654321)+'.repeat(38) + '1',
  ]
  for (const expression of hostile) {
    const answer = calculate.execute({ expression }, testToolContext())
    const ending = await answer.then(
      ({ content }) => (/^-?([\d.]+(e[+-]\d+)?|Infinity)$/.test(String(content)) ? 'a number' : content),
      (error: Error & { code?: string }) => (error.code === 'calculation' ? 'a refusal' : error),
    )
    assert.ok(ending === 'a number' || ending === 'a refusal', `${expression.slice(0, 20)}: ${String(ending)}`)
  }
})
