import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Registry } from 'prom-client'
import { createSecretMetrics, startCensus } from '../census.ts'
import { keyringOf } from '../settings.ts'
import { masterKey, randomKey, stage } from './stage.ts'

const bytes = (key: string): Buffer => Buffer.from(key, 'base64')

test('metrics say how many secrets of all tenants expire, and how many values hang on the key before', async (t) => {
  const { owner, other, database } = await stage(t)
  const initech = await other('initech')
  const soon = new Date(Date.now() + 24 * 60 * 60_000).toISOString()
  for (const call of [owner, initech]) {
    await call('POST', '/api/secrets', { name: 'kept', value: 'x' })
    await call('POST', '/api/secrets', { name: 'ends', value: 'x', expiresAt: soon })
    await call('PUT', '/api/secrets/kept', { value: 'y' })
  }
  await initech('POST', '/api/secrets', { name: 'gone', value: 'x', expiresAt: soon })
  const expire = { text: `UPDATE secret_versions SET expires_at = now() WHERE name = 'gone'` }
  const lose = { text: `UPDATE secret_versions SET master_key = 'mk_lost' WHERE name = 'gone'` }
  await database.batch('initech', [expire, lose])

  const registry = new Registry()
  const metrics = createSecretMetrics(registry)
  const keyring = keyringOf({ masterKey: bytes(randomKey()), masterKeyPrevious: bytes(masterKey) })!
  t.after(startCensus(database, keyring, metrics, { warn: (...told: unknown[]) => assert.fail(JSON.stringify(told)) }))
  for (;;) {
    if ((await metrics.values.get()).values.length > 0) break
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  const shown = await registry.metrics()
  for (const line of [
    'secrets_stored{state="ok"} 2',
    'secrets_stored{state="expires_soon"} 2',
    'secrets_stored{state="expired"} 1',
    'secrets_values{master_key="current"} 0',
    'secrets_values{master_key="previous"} 6',
    'secrets_values{master_key="unknown"} 1',
  ]) {
    assert.ok(shown.includes(`${line}\n`), `${line} in\n${shown}`)
  }
})
