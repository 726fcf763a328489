import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseJson } from '../bodies.ts'

const long = 'a'.repeat(70_000)
/** As one word, because a difference of megabytes is no message for people. */
const same = (text: string): void =>
  assert.ok(JSON.stringify(parseJson(Buffer.from(text))) === JSON.stringify(JSON.parse(text)), text.slice(-60))

test('a body with long strings is what JSON.parse makes of it', () => {
  const strings = [long, `${long}é`, `${long}\\n`, `${long}\\u0041`, `${long}\\"x`, `${long}\u007f`, '']
  for (const string of strings) {
    // The offset of a string in its body decides how it is looked at.
    for (const pad of ['', 'x', 'xx', 'xxx'])
      same(`{"p":"${pad}","a":["${string}", {"b":"${string}"}],"c":"${long}${long}"}`)
  }
  same(`{"${long}":1,"${long}b" : "${long}"}`)
  same(`"${long}"`)
  const many = JSON.stringify(Array.from({ length: 60_000 }, (_, i) => i))
  same(`{"a":"${long}","b":${many}}`)
})

test('what is no JSON is refused, also inside of long strings', () => {
  const refused = (text: string): void => assert.throws(() => parseJson(Buffer.from(text)), { code: 'invalid_request' })
  for (const code of [0, 9, 10, 31]) {
    for (let at = 0; at < 5; at++) {
      const control = String.fromCharCode(code)
      refused(`{"a":"${'a'.repeat(70_000 + at)}${control}${'b'.repeat(at)}"}`)
      refused(`{"a":"${control}${'b'.repeat(70_000 + at)}"}`)
    }
  }
  refused(`{"a":"${long}`)
  refused(`{"a":"${long}" x}`)
})

test('a dangerous name stays out of a body with a long string', () => {
  const body = parseJson(Buffer.from(`{"__proto__":{"x":1},"a":"${long}"}`)) as { x?: number }
  assert.equal(body.x, undefined)
})
