import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createLogger } from '../logger.ts'

test('credentials are taken out of log lines by the names they travel under', () => {
  const lines: string[] = []
  const log = createLogger('test', 'info', { write: (line: string) => void lines.push(line) })
  const canary = 's3cret-canary'
  for (const key of ['authorization', 'apiKey', 'token', 'password', 'secret', 'pepper', 'cookie', 'dsn']) {
    log.info({ [key]: canary }, 'bare')
    log.child({ plugin: 'p' }).info({ headers: { [key]: canary } }, 'headers')
    log.warn({ req: { headers: { [key]: canary } } }, 'nested')
    log.error({ err: Object.assign(new Error('failed'), { [key]: canary }) }, 'error')
  }
  assert.equal(lines.length, 32)
  for (const line of lines) {
    assert.doesNotMatch(line, /s3cret-canary/)
    assert.equal(JSON.parse(line).role, 'test')
  }
})

test('a log line is one JSON object with its time as ISO 8601', () => {
  const lines: string[] = []
  createLogger('test', 'info', { write: (line: string) => void lines.push(line) }).info({ text: 'a\nb' }, 'c\nd')
  assert.equal(lines.length, 1)
  assert.equal(lines[0]!.indexOf('\n'), lines[0]!.length - 1)
  const { time } = JSON.parse(lines[0]!)
  assert.equal(new Date(time).toISOString(), time)
})
