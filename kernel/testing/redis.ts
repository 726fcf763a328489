import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { Redis } from 'ioredis'

/**
 * The URL of a Redis server with a key prefix of this test's own, removed after it. Without a server the test is skipped
 * with the reason, and undefined is returned; with CI=true that is a failure instead.
 */
export async function redisForTests(t: Pick<TestContext, 'after' | 'skip'>): Promise<string | undefined> {
  // The environment is read here although plugins may not: no role file stands behind a test.
  const address = process.env['REDIS_URL'] || 'redis://127.0.0.1:6379'
  const client = new Redis(address, { lazyConnect: true, retryStrategy: () => null, connectTimeout: 2_000 })
  client.on('error', () => {})
  try {
    await client.connect()
  } catch (cause) {
    client.disconnect()
    const reason = `no Redis answers at ${new URL(address).host}: start one, or set REDIS_URL`
    if (process.env['CI'] === 'true') throw new Error(reason, { cause })
    t.skip(reason)
    return undefined
  }
  const prefix = `ao-test-${randomBytes(6).toString('hex')}:`
  t.after(async () => {
    for await (const keys of client.scanStream({ match: `${prefix}*`, count: 1_000 })) {
      if ((keys as string[]).length > 0) await client.unlink(...(keys as string[]))
    }
    await client.quit()
  })
  const url = new URL(address)
  url.searchParams.set('keyPrefix', prefix)
  return url.href
}
