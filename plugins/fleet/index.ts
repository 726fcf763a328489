import { Type } from '@sinclair/typebox'
import { CommaList, definePlugin, Duration, maybe, Settings } from '#kernel'
import { ApiGuard, InternalGuard } from '#contracts/auth'
import { ReadinessChecks } from '#contracts/health'
import { Kv } from '#contracts/kv'
import { TenantLimits } from '#contracts/limits'
import { fleetErrors } from '#contracts/run-errors'
import { Fleet, LocalRunners } from '#contracts/runner'
import { Signers } from '#contracts/signing'
import { tenantHeader } from '#contracts/wire/runner'
import { createPeers, followTls, hasKey, PeerTls, signedBy } from '#kit'
import { createMembership, membershipRoutes } from './membership.ts'
import { RunnerFleet } from './fleet.ts'
import { checkRunnerUrl, createRemoteRunner, runnerPeers } from './remote-runner.ts'
import { createObserver, tellUsage, topologyRoutes } from './topology.ts'

/**
 * The runners of this conductor: those behind URLs, and the runner in this process if there is one. Covers where sessions are placed, what tenants
 * see of the runners, and what operators change. Specification 4.14.
 */
export default definePlugin({
  name: 'fleet',
  config: Settings({
    urls: CommaList('Base URLs of the runners, each exactly as configured at the runner itself.'),
    probeInterval: Duration(
      '2s',
      'How often each runner is asked whether it lives, what it can do and how busy it is.',
    ),
    topologyRequestsPerMinute: Type.Integer({
      default: 30,
      minimum: 1,
      maximum: 100_000,
      description: 'Requests of GET /api/topology by a tenant.',
    }),
    tls: PeerTls,
    topologyFreshFor: Duration(
      '2s',
      'How long GET /api/topology shows the last answer of a runner before asking it again.',
    ),
  }),
  risks: ({ urls, tls }, role) => {
    const certified = tls.cert !== undefined && urls.every((url) => url.startsWith('https:'))
    return urls.length === 0 || hasKey(role, 'runner') || certified
      ? []
      : [
          'requests to runners carry no proof of who calls, so these runners answer whoever reaches them; set RUNNER_SIGNING_KEY_CURRENT, or use https and tls.cert',
        ]
  },
  errors: fleetErrors,
  requires: {
    local: LocalRunners,
    kv: Kv,
    api: ApiGuard,
    internal: InternalGuard,
    signers: Signers,
    limits: maybe(TenantLimits),
  },
  provides: { fleet: Fleet, readiness: ReadinessChecks },
  async setup({ config, deps: { local, kv, api, internal, signers, limits }, log, routes, onStart, onStop }) {
    if (config.urls.length + local.size === 0) {
      throw new Error('no runner is configured; set RUNNER_URLS, or add a runner to this role')
    }
    const configured = [...new Set(config.urls.map(checkRunnerUrl))]
    const identity = signedBy(signers.get('runner'), tenantHeader)
    const peers = createPeers({ ...runnerPeers(), identity, tls: followTls(config.tls, log) })
    onStop(() => peers.close())
    const connect = (url: string) => createRemoteRunner(url, peers.at(url))
    const fleet = new RunnerFleet({ intervalMs: config.probeInterval, log })
    onStop(async () => fleet.stop())
    const here = [...local.values()].map((link) => fleet.add(link, ''))
    const others = configured.map((url) => fleet.add(connect(url), url))
    onStart(async () => {
      // A runner of this process answers when its listener listens, which is after this.
      for (const member of here) void member.start()
      await Promise.all(others.map((member) => member.start()))
    })

    if (limits) tellUsage(limits, fleet)
    const observe = createObserver({ fleet, freshMs: config.topologyFreshFor })
    routes('conductor', async (app) => {
      api.protect(app)
      await topologyRoutes(app, { guard: api, kv, requestsPerMinute: config.topologyRequestsPerMinute, observe })
    })
    const membership = createMembership({ fleet, configured, connect })
    routes('internal', async (app) => {
      internal.protect(app)
      membershipRoutes(app, membership, log)
    })
    return { fleet, readiness: { runners: fleet.ready } }
  },
})
