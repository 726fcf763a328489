import assert from 'node:assert/strict'
import { EventEmitter } from 'node:events'
import { test } from 'node:test'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { isAppError } from '#kernel'
import { SessionRequests } from '#kit'

const mebi = 1024 * 1024
const tooMany = (error: unknown): boolean => isAppError(error) && error.code === 'too_many_session_requests'

function counting() {
  const requests = new SessionRequests()
  return (sessionId: string, bytes: number | undefined, tenantId = 'acme') => {
    const raw = Object.assign(new EventEmitter(), { destroyed: false })
    const headers = bytes === undefined ? { 'transfer-encoding': 'chunked' } : { 'content-length': String(bytes) }
    const request = { headers, routeOptions: { bodyLimit: mebi } } as unknown as FastifyRequest
    const begun = requests.begin(request, { raw } as unknown as FastifyReply, { tenantId, sessionId })
    return { ...begun, close: () => void raw.emit('close') }
  }
}

test('a tenant has 32 MiB of bodies and 2,000 requests at once in all of its sessions', () => {
  const begin = counting()
  const large = Array.from({ length: 32 }, (_, at) => begin(`s${at >> 2}`, at % 2 ? mebi : undefined))
  assert.throws(() => begin('another', 1), tooMany)
  begin('another', 0).close()
  begin('another', 1, 'globex').close()
  for (const { close } of large) close()
  const small = Array.from({ length: 2_000 }, (_, at) => begin(`s${at >> 7}`, 100))
  assert.throws(() => begin('another', 0), tooMany)
  small[0]!.close()
  begin('another', 0)
})

test('a session has 4 MiB and 128 requests, and what was refused counts for nobody', () => {
  const begin = counting()
  const large = Array.from({ length: 4 }, () => begin('s', mebi))
  for (let i = 0; i < 100; i++) assert.throws(() => begin('s', mebi), tooMany)
  for (const { close } of large) close()
  const small = Array.from({ length: 128 }, () => begin('s', 0))
  assert.throws(() => begin('s', 0), tooMany)
  small[0]!.close()
  begin('s', 0)
})

test('a request counts until what was begun for it has ended, however it ended', async () => {
  const begin = counting()
  const [first, second] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const requests = Array.from({ length: 128 }, () => begin('s', 0))
  const one = requests[0]!
  const [all, failed] = [one.until(first.promise), assert.rejects(one.until(second.promise), /failed/)]
  one.close()
  assert.throws(() => begin('s', 0), tooMany)
  first.resolve()
  await all
  assert.throws(() => begin('s', 0), tooMany)
  second.reject(new Error('failed'))
  await failed
  begin('s', 0)
  assert.throws(() => begin('s', 0), tooMany)
})
