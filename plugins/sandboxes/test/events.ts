import type { TestContext } from 'node:test'
import type { Registry } from 'prom-client'
import { definePlugin } from '#kernel'
import { Kv } from '#contracts/kv'
import { Fleet, type RunnerLink } from '#contracts/runner'
import { invalidSandbox, type SandboxDelivery, SandboxEventDecoders } from '#contracts/sandbox'
import { fake, testKernel } from '#testing'
import sandboxEvents from '../events/index.ts'

export type Tell = (provider: string, sandboxId: string) => Promise<number>

/** Counts without a window: a key over its limit stays over it. */
export function countingKv() {
  const counts = new Map<string, number>()
  const kv: Partial<Kv> = {
    async hit(key, limit) {
      const count = (counts.get(key) ?? 0) + 1
      if (count > limit) return { allowed: false, count: limit, retryAfterMs: 1_500 }
      counts.set(key, count)
      return { allowed: true, count, retryAfterMs: 0 }
    },
  }
  return { kv: kv as Kv, counts }
}

/** A conductor with these runners, whose provider `plain` takes text that names a sandbox. */
export async function conductor(t: TestContext, runners: readonly Tell[], config: Record<string, unknown> = {}) {
  const deliveries: SandboxDelivery[] = []
  const registries: Registry[] = []
  const links = runners.map(
    (invalidateSandbox, i) => ({ hash: `0000000${i}`, invalidateSandbox }) as Partial<RunnerLink>,
  )
  const fleet: Partial<Fleet> = { all: () => links as RunnerLink[] }
  const decode = (delivery: SandboxDelivery) => {
    deliveries.push(delivery)
    const text = delivery.body.toString('utf8')
    if (text === 'unreadable') throw invalidSandbox('Nobody can read this.')
    return text.startsWith('sandbox ') ? { sandboxId: text.slice('sandbox '.length) } : undefined
  }
  const decoder = definePlugin({
    name: 'plain-events',
    provides: { decoders: SandboxEventDecoders },
    async setup({ metrics }) {
      registries.push(metrics)
      return { decoders: { plain: { decode } } }
    },
  })
  const { kv, counts } = countingKv()
  const kernel = await testKernel(t, [
    { name: 'sandbox-events', plugin: sandboxEvents, config },
    fake(Fleet, fleet as Fleet),
    fake(Kv, kv),
    decoder,
  ])
  const app = kernel.listeners['conductor']!
  const post = (payload: string | Buffer, headers: Record<string, string> = {}, provider = 'plain') =>
    app.inject({ method: 'POST', url: `/api/sandbox-events/${provider}`, headers, payload })
  return { kernel, app, post, deliveries, counts, registry: registries[0]! }
}
