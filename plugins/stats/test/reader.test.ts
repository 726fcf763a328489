import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database } from '#contracts/database'
import { createReader } from '../reader.ts'
import { statsKernel } from './kernel.ts'

/** A database that answers when the test says so. */
function heldDatabase() {
  const held: PromiseWithResolvers<object[][]>[] = []
  const batch = () => {
    const answer = Promise.withResolvers<object[][]>()
    held.push(answer)
    return answer.promise
  }
  return { held, database: { as: () => ({ batch }) } as unknown as Database }
}
const settled = () => new Promise((resolve) => setImmediate(resolve))

test('a read of each tenant and two of all run at once; the others wait in line, and beyond fifty of a tenant they are refused', async () => {
  const { held, database } = heldDatabase()
  const reader = createReader(database)
  const reads = Array.from({ length: 51 }, (_, i) => reader.read('acme', [{ text: String(i) }]))
  await assert.rejects(reader.read('acme', []), { status: 503, code: 'unavailable', headers: { 'retry-after': '2' } })
  await settled()
  assert.equal(held.length, 1)
  const others = [reader.read('globex', []), reader.read('initech', [])]
  await settled()
  assert.equal(held.length, 2, 'a full line of one tenant is in nobody’s way')
  held[1]!.resolve([[], [{ n: 2 }]])
  assert.deepEqual(await others[0], [[{ n: 2 }]])
  await settled()
  assert.equal(held.length, 3, 'the next tenant is before the next read of the first one')
  held[0]!.resolve([[], [{ n: 1 }]])
  assert.deepEqual(await reads[0], [[{ n: 1 }]])
  await settled()
  assert.equal(held.length, 4)
  held[3]!.reject(new Error('broken'))
  await assert.rejects(reads[1]!, /broken/)
  await settled()
  assert.equal(held.length, 5, 'a failure gives its place on, too')
  for (let i = 2; i < 51; i++) {
    held[i + 2]!.resolve([[]])
    await reads[i]
    await settled()
  }
  assert.equal(held.length, 53)
  void reader.read('acme', [])
  void reader.read('acme', [])
  await settled()
  assert.equal(held.length, 54, 'the places are free again')
})

test('a read that takes too long ends with a sentence, and its limits end with it', async (t) => {
  const { database } = await statsKernel(t)
  const reader = createReader(database)
  const quick = { text: `SELECT set_config('statement_timeout', '20', true)` }
  await assert.rejects(reader.read('acme', [quick, { text: 'SELECT pg_sleep(60)' }]), {
    status: 503,
    message: /ask for a shorter window/,
  })
  const show = { text: `SELECT current_setting('statement_timeout') AS timeout, current_setting('work_mem') AS memory` }
  const [[inside]] = await reader.read<[object[]]>('acme', [show])
  assert.deepEqual(inside, { timeout: '15s', memory: '32MB' })
  for (let i = 0; i < 12; i++)
    assert.notDeepEqual((await database.as('reads').batch<[object[]]>('acme', [show]))[0][0], inside)
})
