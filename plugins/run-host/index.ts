import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, Settings } from '#kernel'
import { Runtimes } from '#contracts/runtime'
import { LocalSidecars } from '#contracts/sidecar'
import { sidecarErrors } from '#contracts/sidecar-errors'
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
  }),
  errors: sidecarErrors,
  requires: { runtimes: Runtimes },
  provides: { links: LocalSidecars },
  async setup(ctx) {
    const { config, deps, log, metrics } = ctx
    const host = new RunHost(config.mode, deps.runtimes, log, metrics)
    ctx.onStop(() => host.stop())
    ctx.beforeClose('sidecar', () => host.drain(config.drain))
    ctx.routes('sidecar', async (app) => sidecarRoutes(app, host))
    return { links: { local: localLink(host) } }
  },
})
