import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isAppError } from '#kernel'
import { createClientAddress, WrongKeys } from '#kit'

function throttle(most: number) {
  let now = 0
  const wrongKeys = new WrongKeys(most, () => now)
  /** Seconds to wait, or 0 for an address that may go on. */
  const waits = async (address: string, known = false): Promise<number> => {
    try {
      await wrongKeys.check(address, () => known)
      return 0
    } catch (error) {
      assert.ok(isAppError(error) && error.code === 'too_many_wrong_keys')
      return Number(error.headers['retry-after'])
    }
  }
  return { wrongKeys, waits, pass: (ms: number) => void (now += ms) }
}

test('an address that fails too often waits for the rest of the minute, and is then as any other', async () => {
  const { wrongKeys, waits, pass } = throttle(2)
  wrongKeys.failed('192.0.2.1')
  pass(20_000)
  assert.equal(await waits('192.0.2.1'), 0)
  wrongKeys.failed('192.0.2.1')
  assert.equal(await waits('192.0.2.1'), 40)
  assert.equal(await waits('192.0.2.1', true), 0, 'a key that is known is no attempt')
  assert.equal(await waits('192.0.2.2'), 0)
  pass(40_000)
  assert.equal(await waits('192.0.2.1'), 0)
  wrongKeys.failed('192.0.2.1')
  assert.equal(await waits('192.0.2.1'), 0)
})

test('an IPv6 network of 64 bits is one address, and an IPv4 one is its own however it is written', async () => {
  const { wrongKeys, waits } = throttle(2)
  for (const end of ['1', 'ffff']) wrongKeys.failed(`2001:db8::${end}`)
  assert.equal(await waits('2001:db8::2'), 60)
  assert.equal(await waits('2001:db8:0:1::2'), 0)
  for (const address of ['192.0.2.1', '::ffff:192.0.2.1']) wrongKeys.failed(address)
  assert.equal(await waits('192.0.2.1'), 60)
})

test('what it remembers is bounded: of addresses and of keys the oldest are forgotten', async () => {
  const { wrongKeys, waits } = throttle(1)
  for (let i = 0; i <= 10_000; i++) wrongKeys.failed(`10.${i >> 16}.${(i >> 8) & 255}.${i & 255}`)
  assert.deepEqual([await waits('10.0.0.0'), await waits('10.0.0.1'), await waits('10.0.39.16')], [0, 60, 60])
  wrongKeys.worked('first')
  for (let i = 0; i < 9_999; i++) wrongKeys.worked(`key ${i}`)
  assert.equal(wrongKeys.isGood('first'), true)
  wrongKeys.worked('first')
  wrongKeys.worked('one more')
  assert.deepEqual(
    [wrongKeys.isGood('first'), wrongKeys.isGood('key 0'), wrongKeys.isGood('key 1')],
    [true, false, true],
  )
  wrongKeys.failed('192.0.2.1', 'first')
  assert.equal(wrongKeys.isGood('first'), false)
})

test('the client is who a trusted proxy names, and nobody else is believed', async () => {
  const from = (proxies: string[], ip: string, forwarded?: string) =>
    createClientAddress(proxies)({ ip, headers: forwarded === undefined ? {} : { 'x-forwarded-for': forwarded } })
  assert.equal(from([], '192.0.2.1', '198.51.100.1'), '192.0.2.1')
  assert.equal(from(['10.0.0.0/8'], '10.1.2.3', '198.51.100.1'), '198.51.100.1')
  assert.equal(from(['10.0.0.0/8'], '10.1.2.3', '203.0.113.9, 198.51.100.1, 10.0.0.2'), '198.51.100.1')
  assert.equal(from(['10.0.0.0/8'], '192.0.2.1', '198.51.100.1'), '192.0.2.1')
  assert.equal(from(['10.0.0.0/8'], '::ffff:10.1.2.3', 'nonsense, ::ffff:198.51.100.1'), '198.51.100.1')
  assert.equal(from([], 'fe80::1%eth0'), 'fe80::1')
  assert.equal(from(['10.0.0.0/8'], '10.1.2.3', '10.0.0.9, 10.0.0.2'), '10.0.0.9')
  assert.throws(() => createClientAddress(['example.com']), /AGENT_ORC_TRUSTED_PROXIES: 'example.com' is neither/)
})

test('a hop is read with its port, and nobody stands behind one that is no address', async () => {
  const from = (forwarded: string) =>
    createClientAddress(['10.0.0.0/8', '2001:db8:1::/48'])({
      ip: '10.1.2.3',
      headers: { 'x-forwarded-for': forwarded },
    })
  // All but the last hop is what the client itself may have sent. 10.0.0.7 is an address that it would like to have.
  for (const [forwarded, client] of [
    ['10.0.0.7, 203.0.113.9:51234', '203.0.113.9'],
    ['10.0.0.7:80, 203.0.113.9:51234, 10.0.0.2:443', '203.0.113.9'],
    ['10.0.0.7, [2001:db8::9]:51234', '2001:db8::9'],
    ['10.0.0.7, [2001:db8::9]', '2001:db8::9'],
    ['10.0.0.7, 203.0.113.9, [2001:db8:1::2]:443', '203.0.113.9'],
    ['10.0.0.7, ::ffff:203.0.113.9', '203.0.113.9'],
    ['10.0.0.7, [::ffff:203.0.113.9]:51234', '203.0.113.9'],
    ['10.0.0.7, [::ffff:cb00:7109]:51234', '203.0.113.9'],
    ['10.0.0.7,203.0.113.9 ,\t10.0.0.2', '203.0.113.9'],
    // The nearest proxy that said who came to it is all that is known.
    ['198.51.100.7, unknown', '10.1.2.3'],
    ['198.51.100.7, unknown, 10.0.0.2', '10.0.0.2'],
    ['198.51.100.7, _x:51234, 10.0.0.2', '10.0.0.2'],
    ['198.51.100.7, , 10.0.0.2', '10.0.0.2'],
    ['198.51.100.7,', '10.1.2.3'],
    [' ', '10.1.2.3'],
    ['', '10.1.2.3'],
    ['198.51.100.7, 203.0.113.9:', '10.1.2.3'],
    ['198.51.100.7, [203.0.113.9', '10.1.2.3'],
    ['198.51.100.7, 203.0.113.9:51234:1', '10.1.2.3'],
    ['198.51.100.7, "[2001:db8::9]:51234"', '10.1.2.3'],
    ['198.51.100.7, 3405803785', '10.1.2.3'],
    ['198.51.100.7, 203.0.113.9/32', '10.1.2.3'],
  ] as const) {
    assert.equal(from(forwarded), client, forwarded)
  }
})

test('of keys that come at once few are looked up at once, and none once these were too many wrong ones', async () => {
  const { wrongKeys } = throttle(10)
  let [looked, underWay, most] = [0, 0, 0]
  const look = async (): Promise<string | undefined> => {
    looked++
    most = Math.max(most, ++underWay)
    await new Promise(setImmediate)
    underWay--
    return undefined
  }
  const tried = Array.from({ length: 60 }, (_, i) =>
    wrongKeys.find('192.0.2.1', `wrong ${i}`, look).catch((error: unknown) => isAppError(error) && error.code),
  )
  const others = await wrongKeys.find('192.0.2.2', 'right', async () => looked)
  assert.ok(others! < 10, 'another address is behind none of them')
  const codes = await Promise.all(tried)
  assert.equal(most, 8)
  assert.ok(looked >= 10 && looked < 18, `${looked} were looked up`)
  assert.equal(codes.filter((code) => code === 'too_many_wrong_keys').length, 60 - looked)
  wrongKeys.worked('good')
  assert.equal(await wrongKeys.find('192.0.2.1', 'good', async () => 'found'), 'found')
  assert.equal(await wrongKeys.find('192.0.2.1', 'good', look), undefined, 'it was revoked')
  await assert.rejects(wrongKeys.find('192.0.2.1', 'good', look))
})

test('a look-up that fails is no wrong key, and the next one has its turn', async () => {
  const { wrongKeys, waits } = throttle(1)
  const away = async (): Promise<undefined> => Promise.reject(new Error('away'))
  for (let i = 0; i < 20; i++) await assert.rejects(wrongKeys.find('192.0.2.1', `key ${i}`, away), /away/)
  assert.equal(await waits('192.0.2.1'), 0)
  assert.equal(await wrongKeys.find('192.0.2.1', undefined, away), undefined, 'no key is looked up for such a text')
  assert.equal(await waits('192.0.2.1'), 60)
})
