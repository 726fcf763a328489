import { Type } from '@sinclair/typebox'
import { definePlugin, isAppError, Settings, unavailable, type AppError } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { sidecarLinkErrors } from '#contracts/runner-errors'
import { LocalSidecars, type SidecarLink, Sidecars, type SidecarHealth, type SidecarSlot } from '#contracts/sidecar'
import { Signers } from '#contracts/signing'
import { tenantHeader } from '#contracts/wire/runner'
import { createPeers, followTls, PeerTls, signedBy, openOnRead, type Peer, type PeersOptions } from '#kit'
import { maxBundleBytes, runtimeSessionIdHeader, sidecarWire, workerInstanceHeader } from '#contracts/wire/sidecar'

const url = (description: string) => Type.Optional(Type.String({ pattern: '^https?://[^\\s]+$', description }))

/** The runner's way to its sidecars: over HTTP where a URL is configured, else in process. */
export default definePlugin({
  name: 'sidecar-links',
  config: Settings({
    url: url('Adds one sidecar for every runtime.'),
    general: url('The sidecar of `general`, instead of the shared one.'),
    runtimeA: url('The sidecar of `runtime_a`, instead of the shared one.'),
    runtimeB: url('The sidecar of `runtime_b`, instead of the shared one.'),
    tls: PeerTls,
  }),
  errors: sidecarLinkErrors,
  requires: { local: LocalSidecars, signers: Signers },
  provides: { sidecars: Sidecars, readiness: ReadinessChecks },
  async setup(ctx) {
    const { config } = ctx
    const identity = signedBy(ctx.deps.signers.get('runner'), tenantHeader)
    const peers = createPeers({ ...sidecarPeers, identity, tls: followTls(config.tls, ctx.log) })
    ctx.onStop(() => peers.close())
    const byUrl = new Map<string, KnownSidecar>()
    const at = (address: string): KnownSidecar => {
      const known = byUrl.get(address) ?? { link: createRemoteSidecar(peers.at(address)), url: address }
      byUrl.set(address, known)
      return known
    }
    const own = new Map<string, KnownSidecar>()
    if (config.general) own.set('general', at(config.general))
    if (config.runtimeA) own.set('runtime_a', at(config.runtimeA))
    if (config.runtimeB) own.set('runtime_b', at(config.runtimeB))
    const local = ctx.deps.local.get('local')
    const shared = config.url ? at(config.url) : local && { link: local, url: '' }
    const links = [...new Set([...own.values(), ...(shared ? [shared] : [])].map(({ link }) => link))]
    return { sidecars: createSidecars(own, shared), readiness: { sidecar: () => anyAnswers(links) } }
  },
})

/** A runner without any sidecar may still have sandboxes; one whose sidecars are all silent executes nothing. */
async function anyAnswers(links: readonly SidecarLink[]): Promise<void> {
  if (links.length === 0) return
  await Promise.any(links.map((link) => link.health())).catch(({ errors }: AggregateError) => {
    const refused = errors.find((error) => isAppError(error) && error.detail['status'] === 401)
    throw refused ?? unavailable({ message: 'No sidecar answers.' })
  })
}

/** Runtimes of a sidecar that says `all` and lists nothing: the specification's three. */
const standardRuntimes = ['general', 'runtime_a', 'runtime_b'] as const

/** One sidecar that this runner was told about. */
interface KnownSidecar {
  readonly link: SidecarLink
  /** '' for a sidecar in the same process. */
  readonly url: string
}

/** How long an answer of `/health` is believed; a failed probe is repeated sooner, since the sidecar may just be starting. */
const freshMs = 5_000
const retryMs = 1_000
/** A sidecar that was silent for this long offers nothing: a runner that still announced its runtimes would get runs and fail them. */
const goneMs = 10_000

/**
 * Chooses the sidecar of a runtime: its own URL, else the poly-sidecar's, else the local one. `shared` is the
 * poly-sidecar or the local one, which is asked what it can run.
 */
export function createSidecars(
  own: ReadonlyMap<string, KnownSidecar>,
  shared: KnownSidecar | undefined,
  now: () => number = Date.now,
): Sidecars {
  let known: readonly string[] | undefined
  let missing: Readonly<Record<string, string>> = {}
  let askedAt = -Infinity
  let answeredAt = -Infinity
  let asking: Promise<void> | undefined
  const ask = async (source: KnownSidecar): Promise<void> => {
    const health: SidecarHealth | undefined = await source.link.health().catch(() => undefined)
    if (health) {
      known = health.runtimes
      missing = health.missing ?? {}
      answeredAt = now()
    } else if (now() - answeredAt >= goneMs) known = undefined
    askedAt = now() - (health ? 0 : freshMs - retryMs)
  }
  const refresh = (): Promise<void> => {
    if (!shared || now() - askedAt < freshMs) return Promise.resolve()
    asking ??= ask(shared).finally(() => {
      asking = undefined
    })
    return asking
  }
  const names = (): string[] => [...new Set([...own.keys(), ...(known ?? [])])].sort()
  return {
    forRuntime(runtime) {
      const serving = own.get(runtime) ?? shared
      if (!serving) {
        throw sidecarLinkErrors.runtimeUnavailable({
          message: `No sidecar is configured for the runtime '${runtime}'.`,
        })
      }
      return serving.link
    },
    async runtimes() {
      await refresh()
      return names()
    },
    slots() {
      // Not awaited: this caller gets what is known now, the next one the refreshed answer.
      void refresh()
      const slotOf = (runtime: string): SidecarSlot => {
        const override = own.get(runtime)
        if (override) return { runtime, mode: 'sidecar', url: override.url }
        if (!shared) return { runtime, mode: 'stub', url: '' }
        if (!known) return { runtime, mode: 'unknown', url: shared.url }
        if (known.includes(runtime)) return { runtime, mode: 'sidecar', url: shared.url }
        const why = missing[runtime]
        return { runtime, mode: 'stub', url: '', ...(why === undefined ? {} : { missing: why }) }
      }
      return [...new Set([...standardRuntimes, ...names(), ...Object.keys(missing)])].map(slotOf)
    },
  }
}

/** A longer health body is refused. */
const maxHealthBytes = 64 * 1024
const healthMs = 2_000
const connectMs = 5_000
/** State operations may pack or unpack an archive. For a run the limit is on the response head, which comes at once. */
const answerMs = 60_000

/** How a runner connects to its sidecars. */
const sidecarPeers: Omit<PeersOptions, 'identity'> = {
  connectMs,
  timeoutMs: answerMs,
  faults: {
    // Without a response head the sidecar executes nothing: the closed connection has ended whatever it began.
    lost: ({ answered, cause }) =>
      answered
        ? sidecarLinkErrors.sidecarLost({ cause })
        : sidecarLinkErrors.sidecarUnreachable({ cause, retryable: true }),
    unproven: () =>
      sidecarLinkErrors.sidecarRefused({
        message:
          'The sidecar wants another proof of who calls: RUNNER_SIGNING_KEY_CURRENT must be the same on both, and their clocks within a minute.',
        detail: { status: 401 },
      }),
    failed: ({ message, detail }) =>
      sidecarLinkErrors.sidecarRefused({
        message: message ?? `The sidecar answered ${String(detail?.['status'])}.`,
        ...(detail && { detail }),
      }),
  },
}

/** Read as bytes and parsed leniently: a sidecar of another maker leaves out most fields, and puts some into a header. */
const health = {
  ...sidecarWire.health,
  reply: { status: 200, bytes: { 'application/json': Type.Unknown() }, description: '' },
} as const

/** A sidecar at a base URL, by the wire API of specification 4.23. */
function createRemoteSidecar(peer: Peer): SidecarLink {
  const state = (runtime: string, sessionId: string) => ({ params: { sessionId }, query: { runtime } })
  return {
    async health(signal) {
      const { headers, bytes } = await peer.ask(health, { signal, timeoutMs: healthMs, maxBytes: maxHealthBytes })
      return healthOf(parse(bytes), headers[workerInstanceHeader])
    },
    run: (body, signal, accepted) =>
      openOnRead(async () => {
        const { lines } = await peer.ask(sidecarWire.run, { body, signal })
        accepted?.()
        return lines
      }),
    async exportState(runtime, sessionId) {
      const found = await peer
        .ask(sidecarWire.exportState, { ...state(runtime, sessionId), maxBytes: maxBundleBytes })
        .catch((error: unknown) => {
          throw isAppError(error) && error.code === 'sidecar_refused' && statusOf(error) === 200
            ? sidecarLinkErrors.stateTooLarge()
            : error
        })
      if (!found) return undefined
      const { headers, bytes } = found
      const handle = headers[runtimeSessionIdHeader]
      return {
        bytes,
        contentType: String(headers['content-type'] ?? 'application/octet-stream'),
        ...(typeof handle === 'string' && handle !== '' ? { runtimeSessionId: handle } : {}),
      }
    },
    async hydrate(runtime, sessionId, { bytes, contentType, runtimeSessionId }) {
      const seeded = runtimeSessionId === undefined ? {} : { [runtimeSessionIdHeader]: runtimeSessionId }
      const headers = { 'content-type': contentType, ...seeded }
      const taken = await peer.ask(sidecarWire.hydrate, { ...state(runtime, sessionId), headers, body: bytes })
      // A 404 of a hydration would mean an unknown profile or session (specification 4.22), and this is neither.
      if (!taken) throw sidecarLinkErrors.sidecarKeepsNoState()
    },
    async forget(runtime, sessionId) {
      try {
        await peer.ask(sidecarWire.forget, state(runtime, sessionId))
      } catch (error) {
        // The specification asks a sidecar for GET and POST only: one that cannot forget has nothing to answer for. Servers that
        // know no DELETE say 501.
        const status = isAppError(error) ? statusOf(error) : 500
        if (status >= 500 && status !== 501) throw error
      }
    },
  }
}

/** The status of the sidecar's own answer. */
const statusOf = ({ detail, status }: AppError): number =>
  typeof detail['status'] === 'number' ? detail['status'] : status

function healthOf(said: Record<string, unknown> | undefined, header: unknown): SidecarHealth {
  if (said?.['ok'] !== true || typeof said['runtime'] !== 'string') {
    throw sidecarLinkErrors.sidecarUnreachable({ message: 'The sidecar answers, but not as a sidecar: check its URL.' })
  }
  const listed = said['runtimes']
  const runtimes = Array.isArray(listed)
    ? listed.filter((name): name is string => typeof name === 'string')
    : said['runtime'] === 'all'
      ? standardRuntimes
      : [said['runtime']]
  return {
    ...said,
    ok: true,
    runtime: said['runtime'],
    runtimes,
    // The specification asks for the header; the body's field is ours.
    instance: typeof said['instance'] === 'string' ? said['instance'] : typeof header === 'string' ? header : '',
    inflight: typeof said['inflight'] === 'number' ? said['inflight'] : 0,
  }
}

function parse(bytes: Buffer): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(bytes.toString('utf8'))
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}
