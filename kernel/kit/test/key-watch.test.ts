import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Held, KeyWatch } from '#kit'

function watch(alive: (tenantId: string, keyIds: readonly string[]) => Promise<readonly string[]>) {
  const open = new Set<Held>()
  const ended: string[] = []
  const warnings: string[] = []
  const log = { info: () => {}, warn: (...said: unknown[]) => void warnings.push(String(said[1])) }
  const watching = new KeyWatch({ held: () => open, alive, log })
  const hold = (tenantId: string, keyId: string): void => {
    const held = {
      tenantId,
      keyId,
      end() {
        ended.push(`${tenantId} ${keyId}`)
        open.delete(held)
      },
    }
    open.add(held)
  }
  return { watching, hold, ended, warnings }
}

test('each key is asked for once, by tenant, and all that a dead one holds ends', async () => {
  const asked: string[] = []
  const { watching, hold, ended } = watch(async (tenantId, keyIds) => {
    asked.push(`${tenantId} ${keyIds.join(',')}`)
    return keyIds.filter((id) => id !== 'dead')
  })
  await watching.look()
  assert.deepEqual(asked, [], 'with nothing open nothing is asked')
  for (const key of ['a', 'dead', 'a', 'dead']) hold('acme', key)
  // The same id in another tenant is another key.
  hold('globex', 'a')
  await watching.look()
  assert.deepEqual(asked, ['acme a,dead', 'globex a'])
  assert.deepEqual(ended, ['acme dead', 'acme dead'])
})

test('very many keys are asked for in parts', async () => {
  const sizes: number[] = []
  const { watching, hold, ended } = watch(async (_tenantId, keyIds) => {
    sizes.push(keyIds.length)
    return []
  })
  for (let i = 0; i < 2_500; i++) hold('acme', String(i))
  await watching.look()
  assert.deepEqual([sizes, ended.length], [[1_000, 1_000, 500], 2_500])
})

test('while the database is away nothing ends, and that is said once; then it goes on', async () => {
  let away = true
  const { watching, hold, ended, warnings } = watch(async () => (away ? Promise.reject(new Error('gone')) : []))
  hold('acme', 'a')
  await watching.look()
  await watching.look()
  assert.deepEqual([ended, warnings.length], [[], 1])
  away = false
  await watching.look()
  assert.deepEqual(ended, ['acme a'])
})

test('looks do not pile up, and a stopped watch waits for the one under way', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] })
  const { promise, resolve } = Promise.withResolvers<string[]>()
  let looks = 0
  const { watching, hold } = watch(() => {
    looks++
    return promise
  })
  hold('acme', 'a')
  watching.start()
  for (let second = 0; second < 5; second++) t.mock.timers.tick(1_000)
  assert.equal(looks, 1)
  let stopped = false
  const stop = watching.stop().then(() => (stopped = true))
  await Promise.resolve()
  assert.equal(stopped, false)
  resolve(['a'])
  await stop
  t.mock.timers.tick(10_000)
  assert.equal(looks, 1)
})

test('a tenant whose check waits for what it has locked delays nobody else’s', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] })
  const { watching, hold, ended } = watch(async (tenantId, keyIds) =>
    tenantId === 'slow' ? new Promise<never>(() => {}) : keyIds.filter((id) => id !== 'dead'),
  )
  hold('slow', 'a')
  hold('acme', 'a')
  watching.start()
  const second = async (): Promise<void> => {
    t.mock.timers.tick(1_000)
    await new Promise((resolve) => setImmediate(resolve))
  }
  await second()
  hold('acme', 'dead')
  assert.deepEqual(ended, [])
  await second()
  assert.deepEqual(ended, ['acme dead'], 'within a second; it has half of one to end')
})
