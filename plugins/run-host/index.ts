import { Type } from '@sinclair/typebox'
import { CommaList, definePlugin, Duration, Settings } from '#kernel'
import { ModelTenants } from '#contracts/model'
import { Runtimes } from '#contracts/runtime'
import { linkErrors } from '#contracts/linked-objects'
import { LocalSidecars } from '#contracts/sidecar'
import { sidecarErrors } from '#contracts/sidecar-errors'
import { isOpen, isReachable } from '#kit'
import { localLink, RunHost, sidecarRoutes } from './host.ts'

/** Executes runs on the role's runtimes: over the sidecar API (specification 4.23) and for a runner in the same kernel. */
export default definePlugin({
  name: 'run-host',
  config: Settings({
    mode: Type.String({ default: 'all', description: 'The runtime this sidecar serves, or all of the role.' }),
    drain: Duration(
      '25s',
      'A stopping sidecar lets its runs end, and runners fetch the conversations that changed, for this long.',
    ),
    runnerHosts: CommaList(
      'Hosts of runners whose tools runs may use, as host or host:port; any when empty. A run for another one is refused.',
    ),
    mcpHosts: CommaList('The same for external MCP servers.'),
  }),
  risks: ({ runnerHosts, mcpHosts }, role) => [
    ...(isOpen(role, 'sidecar')
      ? ['the listener sidecar has no authentication; set RUNNER_SIGNING_KEY_CURRENT, or tls.requestClientCert']
      : []),
    ...(isReachable(role, 'sidecar') && (runnerHosts.length === 0 || mcpHosts.length === 0)
      ? ['runs may be sent to any host; set AGENT_ORC_RUNNER_HOSTS and AGENT_ORC_MCP_HOSTS']
      : []),
  ],
  errors: [sidecarErrors, linkErrors],
  requires: { runtimes: Runtimes, tenants: ModelTenants },
  provides: { links: LocalSidecars },
  async setup(ctx) {
    const { config, deps, log, metrics } = ctx
    const host = new RunHost(config.mode, deps, log, metrics)
    ctx.onStop(() => host.stop())
    ctx.loads(() => import('#kit/linked-files'))
    ctx.beforeClose('sidecar', () => host.drain(config.drain))
    ctx.routes('sidecar', async (app) => sidecarRoutes(app, host, config))
    return { links: { local: localLink(host) } }
  },
})
