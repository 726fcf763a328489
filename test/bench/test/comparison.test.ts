import assert from 'node:assert/strict'
import { test } from 'node:test'
import { againstTable, barsOf, unquiet } from '../comparison.ts'
import type { Sample } from '../measure.ts'
import type { TargetResult } from '../report.ts'

const sample = (chatsPerSecond: number, cpuMs: number): Sample => ({
  chatsPerSecond,
  firstP50: 1_000 / chatsPerSecond,
  firstP99: 0,
  totalP50: 0,
  totalP99: 0,
  cpuMs: cpuMs / 2,
  postgresCpuMs: cpuMs / 2,
  errors: 0,
})

/** One sample for each speed, the CPU the other way round. */
const result = (target: TargetResult['target'], speeds: readonly number[]): TargetResult => {
  const rounds = speeds.map((speed) => sample(speed, 1_000 / speed))
  return {
    target,
    bootMs: 0,
    cells: {},
    rounds: { 'stream x1': rounds, 'stream x64': rounds },
    longRounds: speeds.map((speed) => speed * 100),
    errors: 0,
  }
}

const met = (here: readonly number[], there: readonly number[]): (boolean | undefined)[] =>
  barsOf([result('single', here), result('single there', there)])
    .filter(({ measured }) => measured !== undefined)
    .map((bar) => bar.met)

test('bars are judged by the median of the ratios of each round, so a machine that halves its speed changes nothing', () => {
  assert.deepEqual(met([230, 115, 460], [100, 50, 200]), [true, true, true, true])
  assert.deepEqual(met([219, 109.5, 438], [100, 50, 200]), [false, true, true, true])
  assert.deepEqual(met([190, 190, 190], [100, 100, 100]), [false, false, false, false])
})

test('what was not measured is not met', () => {
  const all = barsOf([result('single', [500]), result('single there', [100]), result('four', [500])])
  assert.equal(all.length, 8)
  assert.equal(all.filter((bar) => bar.measured === undefined && !bar.met).length, 4)
  assert.equal(all.filter((bar) => bar.met).length, 4)
})

test('a proxy that is not the same in every round says that the machine was not quiet', () => {
  const cells = ['stream x64']
  assert.equal(unquiet([result('proxy', [1_000, 1_100, 1_190])], cells), undefined)
  assert.match(unquiet([result('proxy', [1_000, 1_100, 1_300])], cells) ?? '', /NOT quiet.*stream x64: chats\/s 27 %/)
  assert.match(unquiet([result('proxy', [1_000])], cells) ?? '', /One round/)
  assert.match(unquiet([], cells) ?? '', /Without the proxy/)
})

test('each figure stands beside its ratio to the proxy, its spread, and the ratio to the other checkout', () => {
  const results = [result('proxy', [1_000, 1_000]), result('four', [220, 200]), result('four there', [100, 100])]
  const [head, , rate] = againstTable(results, ['stream x64']).split('\n')
  assert.match(head ?? '', /two-hop proxy +\| four processes +\| there +\| here\/there/)
  assert.match(
    rate ?? '',
    /chats\/s +\| 1,000 \(0 %\) +\| 210 \(0.21x, 10 %\) +\| 100 \(0.10x, 0 %\) +\| 2.10x \(2.00-2.20\)/,
  )
})
