import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import { Counter, Gauge, type Registry } from 'prom-client'
import { access, type App, definePlugin, errorTable, failures, Settings } from '#kernel'
import { Kv } from '#contracts/kv'
import { Fleet } from '#contracts/runner'
import { type SandboxEventDecoder, SandboxEventDecoders } from '#contracts/sandbox'
import { addressLimit, type ClientAddress, createClientAddress, takeBytes, trustedProxies } from '#kit'

const sandboxEventErrors = errorTable('sandbox-events', {
  unreadableEvent: {
    status: 400,
    message: 'The body cannot be read, or is larger than 64 KiB.',
    about: 'The body is not a delivery of the provider, or is larger than 64 KiB.',
  },
  signatureInvalid: {
    status: 401,
    message: 'The signature of this delivery is missing or wrong.',
    about: 'The delivery is not signed with the secret of the provider.',
  },
  notFound: { status: 404, message: 'No sandbox provider of this name sends events here.' },
  rateLimited: {
    status: 429,
    retry: true,
    message: 'Too many deliveries came from this address; wait as Retry-After says.',
  },
})

/** Passes events of sandbox providers on to the runners. Specification 4.9. */
export default definePlugin({
  name: 'sandbox-events',
  config: Settings({
    requestsPerMinute: Type.Integer({
      default: 600,
      minimum: 1,
      maximum: 100_000,
      description: 'Deliveries of one client address.',
    }),
    trustedProxies,
  }),
  errors: sandboxEventErrors,
  requires: { fleet: Fleet, kv: Kv, decoders: SandboxEventDecoders },
  async setup({ config, deps: { fleet, kv, decoders }, log, metrics: registry, routes }) {
    const { requestsPerMinute } = config
    const metrics = createEventMetrics(registry, () => fanOut.active)
    const fanOut = createFanOut({ fleet, log, onDropped: metrics.dropped })
    const clientOf = createClientAddress(config.trustedProxies)
    routes('conductor', async (app) => {
      await sandboxEventRoutes(app, { kv, decoders, fanOut, metrics, requestsPerMinute, clientOf })
    })
    return {}
  },
})

/** The largest body of a delivery, in bytes. Specification 4.9. */
const bodyLimit = 64 * 1024

const Params = Type.Object({ provider: Type.String({ description: 'Name of the sandbox provider, such as `e2b`.' }) })
const Receipt = Type.Object(
  {
    queued: Type.Optional(Type.Integer({ description: 'Sandboxes that are being passed on to runners.' })),
    ignored: Type.Optional(Type.Literal(true, { description: 'The delivery says nothing about a sandbox.' })),
  },
  { additionalProperties: true },
)

interface SandboxEventRoutes {
  readonly kv: Pick<Kv, 'hit'>
  readonly decoders: ReadonlyMap<string, SandboxEventDecoder>
  readonly fanOut: Pick<FanOut, 'offer'>
  readonly metrics: EventMetrics
  readonly requestsPerMinute: number
  readonly clientOf: ClientAddress
}

async function sandboxEventRoutes(app: App, options: SandboxEventRoutes): Promise<void> {
  const { kv, decoders, fanOut, metrics, requestsPerMinute, clientOf } = options
  const limit = await addressLimit(app, {
    name: 'sandbox-events',
    kv,
    clientOf,
    max: requestsPerMinute,
    refused(when) {
      metrics.count('limited')
      return sandboxEventErrors.rateLimited(when)
    },
  })

  // The signature covers the raw bytes, so the body must not be parsed first.
  takeBytes(app, bodyLimit)
  app.setErrorHandler((error: unknown) => {
    throw isUnread(error) ? sandboxEventErrors.unreadableEvent({ cause: error }) : error
  })

  app.post(
    '/api/sandbox-events/:provider',
    {
      ...access('public'),
      bodyLimit,
      onRequest: limit,
      schema: {
        tags: ['sandboxes'],
        summary: 'Receive an event of a sandbox provider',
        description:
          'For webhooks of providers, in their own form, signed where the provider signs. No key: all it can do is have runners ' +
          'ask anew how a sandbox is. 429 `rate_limited` beyond the deliveries per minute of an address.',
        params: Params,
        response: {
          202: Receipt,
          ...failures(...Object.values(sandboxEventErrors)),
        },
      },
    },
    async (request, reply) => {
      const { provider } = request.params
      const decoder = decoders.get(provider)
      if (!decoder) throw sandboxEventErrors.notFound()
      const body = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0)
      void reply.code(202)
      const event = decode(decoder, { headers: request.headers, body }, metrics)
      if (!event) {
        metrics.count('ignored')
        return { ignored: true as const }
      }
      const queued = fanOut.offer(provider, event.sandboxId)
      metrics.count(queued ? 'queued' : 'shed')
      return { queued: queued ? 1 : 0 }
    },
  )
}

function decode(
  decoder: SandboxEventDecoder,
  delivery: Parameters<SandboxEventDecoder['decode']>[0],
  metrics: EventMetrics,
) {
  try {
    return decoder.decode(delivery)
  } catch (error) {
    metrics.count('refused')
    throw error
  }
}

// Fastify's codes for a refused body: too large, a wrong length, or no valid media type.
const unread = ['FST_ERR_CTP_BODY_TOO_LARGE', 'FST_ERR_CTP_INVALID_CONTENT_LENGTH', 'FST_ERR_CTP_INVALID_MEDIA_TYPE']
const isUnread = (error: unknown): boolean => unread.includes(String((error as { code?: unknown } | null)?.code))

type Outcome = 'queued' | 'ignored' | 'refused' | 'shed' | 'limited'

interface EventMetrics {
  count(outcome: Outcome): void
  dropped(states: number): void
}

/** Counts deliveries by outcome. */
function createEventMetrics(registry: Registry, activeFanOuts: () => number): EventMetrics {
  const registers = [registry]
  const deliveries = new Counter({
    name: 'sandbox_events_total',
    help: 'Webhook deliveries of sandbox providers, by outcome.',
    labelNames: ['outcome'],
    registers,
  })
  const invalidated = new Counter({
    name: 'sandbox_event_invalidations_total',
    help: 'Cached states of sandboxes that runners dropped because of a webhook delivery.',
    registers,
  })
  new Gauge({
    name: 'sandbox_event_fanouts_active',
    help: 'Webhook deliveries that are being passed on to runners.',
    registers,
    collect() {
      this.set(activeFanOuts())
    },
  })
  return { count: (outcome) => deliveries.inc({ outcome }), dropped: (states) => invalidated.inc(states) }
}

/** The most concurrent fan outs. Specification 4.9. */
const maxFanOuts = 32
/** How long the runners may take. Best effort is enough: a cached state that is not dropped expires soon by itself. */
const windowMs = 2_000

interface FanOutOptions {
  readonly fleet: Pick<Fleet, 'all'>
  readonly log: FastifyBaseLogger
  /** Called with the number of cached states that the runners dropped. */
  onDropped(count: number): void
  readonly windowMs?: number
}

/** Tells every runner, in the background, that a sandbox changed. */
interface FanOut {
  readonly active: number
  /** False when too many fan outs are running. The event is dropped then. */
  offer(provider: string, sandboxId: string): boolean
}

function createFanOut({ fleet, log, onDropped, windowMs: ms = windowMs }: FanOutOptions): FanOut {
  let active = 0
  const tell = async (provider: string, sandboxId: string): Promise<void> => {
    const late = AbortSignal.timeout(ms)
    await Promise.all(
      fleet.all().map((link) =>
        within(link.invalidateSandbox(provider, sandboxId), late).then(onDropped, (err: unknown) => {
          log.debug({ err, runner: link.hash, provider, sandboxId }, 'a runner was not told that a sandbox changed')
        }),
      ),
    )
  }
  return {
    get active() {
      return active
    },
    offer(provider, sandboxId) {
      if (active >= maxFanOuts) {
        log.warn({ provider, sandboxId }, 'sandbox_event.fanout_shed')
        return false
      }
      active++
      void tell(provider, sandboxId).finally(() => active--)
      return true
    },
  }
}

/** Rejects when the signal aborts; the call itself ends by its own limit. */
const within = <T>(answer: Promise<T>, signal: AbortSignal): Promise<T> =>
  new Promise((resolve, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true })
    answer.then(resolve, reject)
  })
