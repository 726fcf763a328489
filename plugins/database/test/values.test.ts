import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { openTransactions } from './pooled.ts'
import { isoTime } from '../batch.ts'

test('values come back as the types of our rows', async (t) => {
  const { systemBatch } = await openTransactions(t)
  const one = async (text: string, ...values: unknown[]) =>
    (await systemBatch<[{ v: unknown }[]]>([{ text: `SELECT ${text} AS v`, values }]))[0][0]!.v
  assert.equal(await one(`9007199254740991::int8`), 9007199254740991)
  assert.deepEqual(await one(`ARRAY[1, NULL]::int8[]`), [1, null])
  assert.equal(await one(`'2026-01-02 03:04:05.678901+02'::timestamptz`), '2026-01-02T01:04:05.678Z')
  assert.deepEqual(await one(`ARRAY['2026-01-02Z', NULL]::timestamptz[]`), ['2026-01-02T00:00:00.000Z', null])
  assert.equal(await one(`'infinity'::timestamptz`), 'infinity')
  assert.equal(await one(`'2026-01-02'::date`), '2026-01-02')
  assert.deepEqual(await one(`$1::jsonb`, { a: [1, 'ü'] }), { a: [1, 'ü'] })
  assert.deepEqual(await one(`$1::bytea`, new Uint8Array([0, 255])), Buffer.from([0, 255]))
  assert.deepEqual(await one(`$1::bytea[]`, [Buffer.from([0, 92])]), [Buffer.from([0, 92])])
  assert.equal(await one(`$1::timestamptz`, new Date(1e12)), new Date(1e12).toISOString())
  assert.equal(await one(`$1::text`, undefined), null)
  assert.equal(await one(`$1::bool`, false), false)
  assert.deepEqual(await one(`$1::text[]`, [null, 'NULL', '']), [null, 'NULL', ''])
  const text = fc.string({ unit: 'grapheme' }).filter((s) => !s.includes('\0'))
  await fc.assert(
    fc.asyncProperty(fc.array(text), text, async (list, single) => {
      assert.deepEqual(await one(`$1::text[]`, list), list)
      assert.equal(await one(`$1::text`, single), single)
    }),
    { numRuns: 100 },
  )
})

test('a time is read by position exactly as Date reads it', () => {
  fc.assert(
    fc.property(fc.date({ min: new Date(0), max: new Date('9999-12-31'), noInvalidDate: true }), (date) => {
      const iso = date.toISOString()
      const text = `${iso.slice(0, 10)} ${iso.slice(11, 23).replace(/\.?0+$/, '')}+00`
      // PostgreSQL leaves out trailing zeros of the fraction, but never of the seconds.
      assert.equal(isoTime(iso.slice(20, 23) === '000' ? `${iso.slice(0, 10)} ${iso.slice(11, 19)}+00` : text), iso)
    }),
  )
})
