import assert from 'node:assert/strict'
import { test } from 'node:test'
import { dsnOf } from '../server.ts'

test('component variables make an address; characters of a password do not change it', () => {
  const parts = { host: 'db.internal', port: 5433, user: 'svc', password: 'p@ss/w:rd', database: 'orc' }
  const url = new URL(dsnOf(parts)!)
  assert.deepEqual(
    [url.hostname, url.port, url.username, decodeURIComponent(url.password), url.pathname],
    ['db.internal', '5433', 'svc', 'p@ss/w:rd', '/orc'],
  )
  assert.equal(dsnOf({ user: 'svc', password: 'x' }), 'postgres://svc:x@127.0.0.1:5432/svc')
  assert.equal(
    dsnOf({ host: '/run/postgresql', user: 'svc' }),
    'postgres://svc@/svc?host=%2Frun%2Fpostgresql&port=5432',
  )
  assert.equal(dsnOf({ host: '::1', database: 'orc' }), 'postgres://[::1]:5432/orc')
  assert.equal(dsnOf({ password: 'alone' }), undefined)
})
