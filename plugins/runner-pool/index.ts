import { CommaList, definePlugin, Duration, Settings } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { LocalRunners, RunnerMembership, RunnerPool } from '#contracts/runner'
import { createPeers } from '#kit'
import { createMembership } from './membership.ts'
import { Pool } from './pool.ts'
import { checkRunnerUrl, createRemoteRunner, runnerPeers } from './remote-runner.ts'

/** The runners of this conductor: those behind URLs, and the one in this process if there is one. */
export default definePlugin({
  name: 'runner-pool',
  config: Settings({
    urls: CommaList('Base URLs of the runners, as the runners themselves are told theirs.'),
    probeInterval: Duration(
      '2s',
      'How often each runner is asked whether it lives, what it can do and how busy it is.',
    ),
  }),
  requires: { local: LocalRunners },
  provides: { pool: RunnerPool, membership: RunnerMembership, readiness: ReadinessChecks },
  async setup(ctx) {
    const { urls, probeInterval: intervalMs } = ctx.config
    const { local } = ctx.deps
    if (urls.length + local.size === 0) {
      throw new Error('no runner is configured; set RUNNER_URLS, or add a runner to this role')
    }
    const configured = [...new Set(urls.map(checkRunnerUrl))]
    const peers = createPeers(runnerPeers)
    ctx.onStop(() => peers.close())
    const connect = (url: string) => createRemoteRunner(url, peers.at(url))
    const pool = new Pool({ intervalMs, log: ctx.log })
    ctx.onStop(async () => pool.stop())
    for (const link of local.values()) pool.add(link, '')
    for (const url of configured) pool.add(connect(url), url)
    ctx.onStart(async () => {
      await Promise.all(pool.members().map((member) => member.start()))
    })
    return {
      pool,
      membership: createMembership({ pool, configured, connect }),
      readiness: {
        runners: async () => {
          if (!pool.members().some((member) => member.state !== 'unreachable')) throw new Error('no runner is live')
        },
      },
    }
  },
})
