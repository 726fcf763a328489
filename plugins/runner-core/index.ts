import { Type } from '@sinclair/typebox'
import { CommaList, definePlugin, Duration, maybe, Settings } from '#kernel'
import { RunnerDelegations } from '#contracts/delegation'
import { runnerHash } from '#contracts/ids'
import { LocalRunners, RunnerCore, RunnerSessions } from '#contracts/runner'
import { Sidecars } from '#contracts/sidecar'
import { Toolkit } from '#contracts/tools'
import { SandboxWorkers } from '#contracts/workers'
import { createRunner } from './service.ts'

const sweepEveryMs = 60_000
/** How long runs get to end when the runner stops; their readers may be gone. */
const stopMs = 5_000

const url = (description: string) => Type.Optional(Type.String({ pattern: '^https?://[^\\s]+$', description }))

/** The sessions of one runner and the runs in them. */
export default definePlugin({
  name: 'runner-core',
  config: Settings({
    baseUrl: url(
      "Where conductors reach this runner; its hash is part of session ids. The runner listener's own URL unless given.",
    ),
    mcpBaseUrl: url('Where sidecars reach the session MCP endpoint; the base URL unless given.'),
    capabilities: CommaList('Runtimes this runner takes; those its sidecars report unless given.'),
    maxSessions: Type.Integer({ default: 100_000, minimum: 1 }),
    drain: Duration(
      '15s',
      'A stopping runner lets its runs end, and conductors fetch the conversations that changed, for this long.',
    ),
    idleTtl: Duration('24h', 'An idle session leaves memory after this; the conductor can hydrate it again.'),
  }),
  requires: {
    sidecars: Sidecars,
    toolkit: Toolkit,
    sandboxes: maybe(SandboxWorkers),
    delegations: maybe(RunnerDelegations),
  },
  provides: { core: RunnerCore, locals: LocalRunners, sessions: RunnerSessions },
  async setup(ctx) {
    const { config, deps, log } = ctx
    let hash: string | undefined
    const baseUrl = (): string => config.baseUrl ?? ctx.urlOf('runner')
    const mcpBaseUrl = (): string => (config.mcpBaseUrl ?? baseUrl()).replace(/\/+$/, '')
    const runner = createRunner({
      sidecars: deps.sidecars,
      sandboxes: deps.sandboxes,
      delegations: deps.delegations,
      toolkit: deps.toolkit,
      hash: () => (hash ??= runnerHash(baseUrl())),
      mcpBaseUrl,
      capabilities: config.capabilities,
      limits: { max: config.maxSessions, idleTtlMs: config.idleTtl },
      log,
    })
    const sweeping = setInterval(() => runner.sweep(), sweepEveryMs)
    ctx.onStop(async () => {
      clearInterval(sweeping)
      await Promise.race([runner.stop(), new Promise((resolve) => setTimeout(resolve, stopMs).unref())])
    })
    ctx.beforeClose('runner', () => runner.drain(config.drain))
    return { core: runner.core, locals: { local: runner.link }, sessions: runner.sessions }
  },
})
