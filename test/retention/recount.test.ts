import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chat, run, type Stage, stage } from './stage.ts'

const stored = async ({ database }: Stage, tenantId: string): Promise<number | undefined> => {
  const [[row]] = await database.batch<[{ bytes: number }[]]>(tenantId, [
    { text: 'SELECT bytes::float8 AS bytes FROM tenant_storage' },
  ])
  return row?.bytes
}

test('what is stored of a tenant is counted over all its tables, and a count that was wrong is right again', async (t) => {
  const s = await stage(t)
  await s.recount()
  // The second time there is a row more: the count itself.
  await s.recount()
  const empty = (await stored(s, 'acme'))!
  await s.sql('acme', ...run('acme', 'run_1', 1), ...chat('acme', 'talk', 1, 'conv'))
  await s.sql(
    'acme',
    `INSERT INTO session_state (tenant_id, session_id, content_type, bytes) VALUES ('acme', 'big', 'x', convert_to(repeat('z', 1000000), 'UTF8'))`,
    `UPDATE tenant_storage SET bytes = 77000000000`,
  )
  await s.recount()
  const full = (await stored(s, 'acme'))!
  assert.ok(
    full - empty > 1_000_000 && full - empty < 1_010_000,
    `${full - empty}: as it was written, however it is kept`,
  )
  assert.ok((await stored(s, 'globex'))! < empty + 1_000, 'other tenants have their own')
  await s.sql('acme', `DELETE FROM session_state WHERE session_id = 'big'`)
  assert.ok((await stored(s, 'acme'))! < full - 1_000_000, 'a deletion does not wait for the next count')
})

test('large tables are counted page by page, whatever their key, each row once', async (t) => {
  const s = await stage(t)
  await s.recount()
  // The second time there is a row more: the count itself.
  await s.recount()
  const empty = (await stored(s, 'acme'))!
  const rows = 1_234
  await s.sql(
    'acme',
    `INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
     SELECT 'acme', 'run-' || n % 7, n, 1, '0123456789'::bytea FROM generate_series(1, ${rows}) n`,
    `INSERT INTO usage_meters (tenant_id, meter, subject, minute, amount)
     SELECT 'acme', 'm', 's' || n % 3, now() + n * interval '1 minute', 1 FROM generate_series(1, ${rows}) n`,
  )
  await s.recount()
  const text = (value: string): number => value.length
  const events = Array.from({ length: rows }, (_, i) => 128 + 10 + text('acme') + text(`run-${(i + 1) % 7}`))
  const meters = Array.from({ length: rows }, () => 128 + text('acme') + text('m') + text('s1'))
  const expected = [...events, ...meters].reduce((a, b) => a + b)
  assert.equal((await stored(s, 'acme'))! - empty, expected)
})
