import { Type } from '@sinclair/typebox'
import { CommaList, definePlugin, Duration, maybe, Settings } from '#kernel'
import { RunnerDelegations } from '#contracts/delegation'
import { LocalRunners, RunnerCore, RunnerSessions } from '#contracts/runner'
import { Sidecars } from '#contracts/sidecar'
import { Toolkit } from '#contracts/tools'
import { SandboxWorkers } from '#contracts/workers'
import { Conversations } from './conversations.ts'
import { createRunner } from './service.ts'
import { SessionTable } from './sessions.ts'
import { createToolCalls } from './tool-calls.ts'
import { Turns } from './turns.ts'

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
    const { toolkit } = deps
    const baseUrl = (): string => config.baseUrl ?? ctx.urlOf('runner')
    const table: SessionTable = new SessionTable({
      max: config.maxSessions,
      idleTtlMs: config.idleTtl,
      toolsOf: (profile) => Object.freeze(toolkit.specs(profile.tools).map(({ name }) => name)),
      onEvict: (session) => conversations.forget(session),
    })
    const conversations = new Conversations(table, deps, log)
    const turns = new Turns({
      table,
      conversations,
      executors: deps,
      log,
      mcpBaseUrl: () => config.mcpBaseUrl ?? baseUrl(),
    })
    const runner = createRunner({ ...deps, table, conversations, turns, baseUrl, capabilities: config.capabilities })
    const sweeping = setInterval(() => table.sweep(), sweepEveryMs)
    ctx.onStop(async () => {
      clearInterval(sweeping)
      await Promise.race([turns.stop(), new Promise((resolve) => setTimeout(resolve, stopMs).unref())])
    })
    ctx.beforeClose('runner', () => runner.drain(config.drain))
    return {
      core: runner.core,
      locals: { local: runner.link },
      sessions: {
        get: (id) => table.any(id),
        list: () => [...table.all()],
        toolSpecs: (session) => toolkit.specs(session.tools),
        invokeTool: createToolCalls(toolkit, turns, deps.sandboxes),
      },
    }
  },
})
