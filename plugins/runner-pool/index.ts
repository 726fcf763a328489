import { Type } from '@sinclair/typebox'
import { CommaList, definePlugin, Duration, Settings } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { LocalRunners, RunnerPool } from '#contracts/runner'
import { createHttpLink, createRunnerAgent } from './http-link.ts'
import { createMember } from './member.ts'
import { createPool } from './pool.ts'

/** The runners of this conductor: those behind URLs, and the one in this process if there is one. */
export default definePlugin({
  name: 'runner-pool',
  config: Settings({
    urls: Type.Optional(CommaList('Base URLs of the runners, as the runners themselves are told theirs.')),
    probeInterval: Type.Optional(Duration('5s', 'How often each runner is asked whether it lives and what it can do.')),
  }),
  requires: { local: LocalRunners },
  provides: { pool: RunnerPool, readiness: ReadinessChecks },
  async setup(ctx) {
    const { urls = [], probeInterval = 5_000 } = ctx.config
    if (urls.length + ctx.deps.local.size === 0) {
      throw new Error('no runner is configured; set RUNNER_URLS, or add a runner to this role')
    }
    const agent = createRunnerAgent()
    ctx.onStop(() => agent.destroy())
    const members = [
      ...[...ctx.deps.local.values()].map((link) => createMember(link, true, probeInterval, ctx.log)),
      ...[...new Set(urls)].map((url) => createMember(createHttpLink(url, agent), false, probeInterval, ctx.log)),
    ]
    ctx.onStop(async () => {
      for (const member of members) member.stop()
    })
    ctx.onStart(async () => {
      await Promise.all(members.map((member) => member.start()))
    })
    return {
      pool: createPool(members),
      readiness: {
        runners: async () => {
          if (!members.some((member) => member.live)) throw new Error('no runner is live')
        },
      },
    }
  },
})
