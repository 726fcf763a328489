import { invalidRequest } from '#kernel'
import type { BroadcastChange } from '#contracts/broadcast'
import { runnerHash } from '#contracts/ids'
import { fleetErrors } from '#contracts/run-errors'
import { isFailingStop, leaving, type RunnerLink } from '#contracts/runner'
import { decodeSessionStatus, maxStateBytes, runnerWire } from '#contracts/wire/runner'
import { encodeSkill } from '#contracts/wire/runner-tools'
import { runtimeSessionIdHeader } from '#contracts/wire/sidecar'
import { openOnRead, type LinesAnswer, type Peer, type PeersOptions } from '#kit'
import { guardedLookup, isNetworkAddress, outboundUrl, type Refusal, systemResolve } from '#kit/outbound'

/** Milliseconds that a runner may take for any call but a run. */
const callTimeoutMs = 10_000
const connectMs = 3_000

/** The runner answers with the stored pool, which no conductor needs, so the reply is reduced to its status. */
const putPool = { ...runnerWire.putPool, reply: { status: 204 } } as const

export const keysDiffer =
  'The runner wants another proof of who calls: RUNNER_SIGNING_KEY_CURRENT must be the same on both, and their clocks within a minute.'

/** How a conductor connects to its runners. Gateways ask only conductors, so gateways need no key for runners. */
export const runnerPeers = (resolve = systemResolve): Omit<PeersOptions, 'identity'> => ({
  connectMs,
  timeoutMs: callTimeoutMs,
  lookup: guardedLookup(resolve, isNetworkAddress),
  faults: {
    lost: ({ asked, cause }) => fleetErrors.runnerUnreachable({ cause, retryable: !asked }),
    failed: fleetErrors.runnerFailed,
    unproven: () => fleetErrors.runnerFailed({ message: keysDiffer, detail: { status: 401 } }),
  },
})

const refusals: Readonly<Record<Refusal, string>> = {
  not_a_url: 'is not an http or https URL',
  scheme: 'is not an http or https URL',
  credentials: 'carries credentials',
  address:
    'has an address of no network of yours: link-local ones and those of the metadata services of clouds are not asked',
  host: 'has a host that is not asked',
}

/**
 * A runner's base URL, without a trailing slash. Private and loopback addresses are allowed: runners usually live on a closed network, and only the
 * signed plane and the configuration can name one. A mistaken URL can reach little: one GET that follows no redirects and must be answered as a
 * runner does. Addresses where clouds keep their credentials are refused, whatever name leads there: `runnerPeers` checks what a name resolves to.
 */
export function checkRunnerUrl(text: string): string {
  const url = outboundUrl(text, { permits: isNetworkAddress, schemes: ['http', 'https'] })
  if (typeof url === 'string') throw refuse(text, refusals[url])
  if (url.hash !== '' || url.search !== '') throw refuse(text, 'has a query or a fragment')
  return text.replace(/\/+$/, '')
}

const refuse = (text: string, why: string) =>
  invalidRequest({ message: `The runner URL '${text.replace(/\/\/[^/]*@/, '//…@')}' ${why}.` })

/** The runner behind a URL. Its hash is the one that it reports; before the first answer, the hash that its URL would give. */
export function createRemoteRunner(url: string, peer: Peer): RunnerLink {
  let hash = runnerHash(url)
  return {
    get hash() {
      return hash
    },
    async info(signal) {
      const said = await peer.ask(runnerWire.info, { signal })
      hash = said.hash
      // A runner of an older release leaves these out. Specification 9.
      return {
        ...said,
        instance: said.instance ?? '',
        capabilitiesKnown: said.capabilitiesKnown ?? said.capabilities.length > 0,
        substrates: said.substrates ?? [],
        substratesKnown: said.substratesKnown ?? false,
      }
    },
    async takeBroadcast(tenant, page) {
      const taken = await peer.ask(runnerWire.takeBroadcast, { tenant, body: page })
      if (taken) return taken.revision
      for (const change of page.changes) await tell(peer, tenant, change)
      return page.revision
    },
    behind: async (revisions) => (await peer.ask(runnerWire.behind, { body: { revisions } }))?.tenants ?? [],
    async getSession(tenant, id) {
      const session = await peer.ask(runnerWire.getSession, { tenant, params: { id } })
      return session && { ...session, status: decodeSessionStatus(session.status) ?? 'errored' }
    },
    deleteSession: async (tenant, id, signal) =>
      void (await peer.ask(runnerWire.deleteSession, { tenant, params: { id }, signal })),
    async hydrate(tenant, sessionId, profile, bundle, replace) {
      const state = bundle && {
        stateB64: Buffer.from(bundle.bytes).toString('base64'),
        contentType: bundle.contentType,
        ...(bundle.runtimeSessionId === undefined ? {} : { runtimeSessionId: bundle.runtimeSessionId }),
      }
      const body = { profileName: profile.name, sessionId, profile, ...state, ...(replace ? { replace } : {}) }
      await peer.ask(runnerWire.hydrate, { tenant, body })
    },
    async exportState(tenant, id) {
      const found = await peer.ask(runnerWire.exportState, { tenant, params: { id }, maxBytes: maxStateBytes })
      if (!found) return undefined
      const handle = found.headers[runtimeSessionIdHeader]
      return {
        bytes: found.bytes,
        contentType: String(found.headers['content-type'] ?? 'application/octet-stream'),
        ...(typeof handle === 'string' && handle !== '' ? { runtimeSessionId: handle } : {}),
      }
    },
    unsaved: async () => (await peer.ask(runnerWire.unsaved, {})) ?? [],
    usage: (tenant, signal) => peer.ask(runnerWire.usage, { tenant, signal }),
    topology: (signal) => peer.ask(runnerWire.topology, { signal }),
    workerLeases: (tenant, signal) => peer.ask(runnerWire.workerLeases, { tenant, signal }),
    workerLease: (tenant, id, signal) => peer.ask(runnerWire.workerLease, { tenant, params: { id }, signal }),
    invalidateSandbox: async (provider, sandboxId) =>
      (await peer.ask(runnerWire.invalidateSandbox, { body: { provider, sandboxId } }))?.invalidated ?? 0,
    delegations: (tenant, id) => peer.ask(runnerWire.delegations, { tenant, params: { id } }),
    objectWrites: async (tenant, id, runId, after) =>
      (await peer.ask(runnerWire.objectWrites, { tenant, params: { id }, query: { runId, after } })) ?? [],
    async answerDelegation(tenant, id, delegationId, answer) {
      await peer.ask(runnerWire.answerDelegation, { tenant, params: { id }, body: { id: delegationId, ...answer } })
    },
    vfsLeases: (tenant, signal) => peer.ask(runnerWire.vfsLeases, { tenant, signal }),
    vfsLease: (tenant, id, signal) => peer.ask(runnerWire.vfsLease, { tenant, params: { id }, signal }),
    invokeTool: async (tenant, id, call, signal) =>
      (await peer.ask(runnerWire.invokeTool, { tenant, params: { id }, body: { ...call }, signal, endless: true }))
        .result,
    putSkill: async (tenant, skill) => void (await peer.ask(runnerWire.putSkill, { tenant, body: encodeSkill(skill) })),
    execute(tenant, body, signal) {
      const opened = () => peer.ask(runnerWire.execute, { tenant, body, signal, endless: true })
      if (!body.keepMs) return openOnRead(async () => (await opened()).lines)
      return keptRun(peer, { tenant, runId: body.runId, signal }, opened)
    },
    attach: (tenant, from, signal) =>
      keptRun(peer, { tenant, runId: from.runId, signal }, () =>
        peer.ask(runnerWire.attach, { tenant, body: { ...from }, signal, endless: true }),
      ),
  }
}

/** Sends a single change, because a foreign runner accepts no pages of changes. */
function tell(peer: Peer, tenant: string, { kind, key, profile, pool }: BroadcastChange): Promise<unknown> {
  if (profile) return peer.ask(runnerWire.putProfile, { tenant, body: profile })
  if (pool) return peer.ask(putPool, { tenant, body: pool })
  if (kind === 'profile') return peer.ask(runnerWire.deleteProfile, { tenant, params: { name: key } })
  return peer.ask(runnerWire.deletePool, { tenant, params: { id: key } })
}

interface Reading {
  readonly tenant: string
  readonly runId: string
  readonly signal: AbortSignal
}

/** The stream of a run that its runner keeps. Closing the connection does not end such a run, so a reader that wants it to end asks for that. */
function keptRun(peer: Peer, { tenant, runId, signal }: Reading, open: () => Promise<LinesAnswer>) {
  let answer: LinesAnswer | undefined
  let cancelled = false
  const cancel = (): void => {
    if (cancelled || answer?.complete || signal.reason === leaving) return
    cancelled = true
    // On a link, resetting the exchange has cancelled the run already.
    if (answer?.linked) return
    const query = isFailingStop(signal.reason) ? { reason: signal.reason } : {}
    peer.ask(runnerWire.cancelRun, { tenant, params: { runId }, query }).catch(() => undefined)
  }
  const lines = openOnRead(async () => {
    signal.addEventListener('abort', cancel, { once: true })
    answer = await open()
    return answer.lines
  })
  const all: AsyncIterableIterator<Buffer> = {
    [Symbol.asyncIterator]: () => all,
    next: () => lines.next(),
    return() {
      cancel()
      return lines.return!()
    },
  }
  return all
}
