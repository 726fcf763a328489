import { Type } from '@sinclair/typebox'
import { CommaList, definePlugin, Duration, maybe, Settings } from '#kernel'
import { ReservedObjects } from '#contracts/linked-objects'
import { WrittenObjects } from '#contracts/object-writes'
import { LocalRunners, RunnerSessions } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import { Sidecars } from '#contracts/sidecar'
import { SkillCache } from '#contracts/skills'
import { Toolkit } from '#contracts/tools'
import { VfsManager } from '#contracts/vfs-manager'
import { SandboxWorkers } from '#contracts/workers'
import { acceptLinks, Ahead, isOpen, isReachable, loopLooks, trusted } from '#kit'
import { BroadcastReceiver } from './broadcast.ts'
import { Conversations } from './conversations.ts'
import { runnerRoutes, runRoutes, sessionRoutes, skillRoutes } from './routes.ts'
import { createRunner, drain } from './runner.ts'
import { Runs } from './runs.ts'
import { SessionTable } from './sessions.ts'
import { toolNamesOf } from './skills.ts'
import { createToolCalls } from './tool-calls.ts'

const sweepEveryMs = 60_000
/** Milliseconds that runs get to end when the runner stops. Their readers may be gone. */
const stopMs = 5_000

const url = (description: string) => Type.Optional(Type.String({ pattern: '^https?://[^\\s]+$', description }))

/** The sessions of one runner and the runs in them. Specification 4.22: the network is trusted, so a plain header names a call's tenant. */
export default definePlugin({
  name: 'runner',
  config: Settings({
    baseUrl: url(
      "Where conductors reach this runner; its hash is part of session ids. The runner listener's own URL by default.",
    ),
    mcpBaseUrl: url('Where sidecars reach the session MCP endpoint; the base URL by default.'),
    capabilities: CommaList('Runtimes this runner takes; those its sidecars report by default.'),
    maxSessions: Type.Integer({
      default: 100_000,
      minimum: 1,
      description: 'A tenant gets at most half of a full runner.',
    }),
    maxProfileBytes: Type.Integer({
      default: 64 * 1024 * 1024,
      minimum: 0,
      description:
        'Bytes of memory of profiles in the sessions of one tenant. Beyond that the least recently used sessions leave memory.',
    }),
    drain: Duration(
      '25s',
      'A stopping runner lets its runs end, and conductors fetch the conversations that changed, for this long.',
    ),
    idleTtl: Duration('24h', 'An idle session is removed from memory after this; the conductor can hydrate it again.'),
    mcpHosts: CommaList(
      'Hosts of external MCP servers to which a run may send its sidecar, as host or host:port; any when empty.',
    ),
  }),
  risks: ({ mcpHosts }, role) => [
    ...(isOpen(role, 'runner')
      ? ['the listener runner has no authentication; set RUNNER_SIGNING_KEY_CURRENT, or tls.requestClientCert']
      : []),
    ...(isReachable(role, 'runner') && mcpHosts.length === 0
      ? ['a run may send its sidecar to any MCP server that is named to it; set AGENT_ORC_MCP_HOSTS']
      : []),
  ],
  errors: runnerErrors,
  requires: {
    sidecars: Sidecars,
    toolkit: Toolkit,
    sandboxes: maybe(SandboxWorkers),
    skills: maybe(SkillCache),
    vfs: maybe(VfsManager),
    objects: maybe(ReservedObjects),
    written: maybe(WrittenObjects),
  },
  provides: { locals: LocalRunners, sessions: RunnerSessions },
  async setup(ctx) {
    const { config, deps, log } = ctx
    const { toolkit, sandboxes, skills, objects } = deps
    const table: SessionTable = new SessionTable({
      max: config.maxSessions,
      maxProfileBytes: config.maxProfileBytes,
      idleTtlMs: config.idleTtl,
      toolsOf: (profile) =>
        Object.freeze(
          toolkit.specs(profile.pinnedSkills ? toolNamesOf(profile) : profile.tools).map(({ name }) => name),
        ),
      onEvict: (session) => conversations.forget(session),
      hasFiles: (session) => sandboxes?.has(session) ?? false,
    })
    sandboxes?.countIn(table)
    const conversations = new Conversations(table, deps, log)
    const ahead = new Ahead(loopLooks())
    const runs = new Runs({
      ahead,
      table,
      conversations,
      executors: deps,
      skills,
      objects: objects?.backend === undefined ? undefined : objects,
      log,
      mcpBase: () => config.mcpBaseUrl ?? config.baseUrl ?? ctx.urlOf('runner'),
    })
    const broadcast = new BroadcastReceiver((...change) => sandboxes?.sawProfile(...change))
    const callTool = createToolCalls(toolkit, runs, deps, ahead)
    const { promise: listening, resolve: listens } = Promise.withResolvers<void>()
    if (config.baseUrl !== undefined) listens()
    const runner = createRunner({
      executors: deps,
      waiting: toolkit.delegations,
      written: deps.written,
      table,
      conversations,
      runs,
      broadcast,
      skills,
      baseUrl: () => config.baseUrl ?? ctx.urlOf('runner'),
      listening,
      capabilities: config.capabilities,
      tools: toolkit.specs().map(({ name }) => name),
      callTool,
    })
    const sessions: RunnerSessions = {
      get: (id) => table.any(id),
      admits: (session, authorization) => runs.admits(session, authorization),
      toolSpecs: (session) => [
        ...toolkit.specs(session.tools),
        ...(session.status === 'running' ? (runs.of(session)?.apps?.values() ?? []) : []),
      ],
      invokeTool: callTool,
    }
    ctx.routes('runner', async (app) => {
      acceptLinks(app, trusted)
      // The kernel notes the URL right after this hook.
      app.addHook('onListen', async () => void setImmediate(listens))
      runnerRoutes(app, runner)
      sessionRoutes(app, runner, log)
      skillRoutes(app, runner)
      runRoutes(app, runner, { sessions, toolkit, mcpHosts: config.mcpHosts })
    })
    const sweeping = setInterval(() => table.sweep(), sweepEveryMs)
    ctx.onStop(async () => {
      clearInterval(sweeping)
      await Promise.race([runs.stop(), new Promise((resolve) => setTimeout(resolve, stopMs).unref())])
      ahead.stop()
    })
    ctx.beforeClose('runner', () => drain(runner, config.drain))
    return { locals: { local: runner }, sessions }
  },
})
