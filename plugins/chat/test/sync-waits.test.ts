import assert from 'node:assert/strict'
import type { ServerResponse } from 'node:http'
import { test } from 'node:test'
import { SyncWaits } from '../sync-waits.ts'

test('nobody is waited for who has left before', async () => {
  const waits = new SyncWaits(new AbortController().signal, 0)
  const left = { destroyed: true, once() {}, off() {} } as unknown as ServerResponse
  const waiter = { tenantId: 'acme', keyId: 'tak_test' }
  assert.equal(await waits.for(() => new Promise(() => {}), waiter, left), 'gone')
})
