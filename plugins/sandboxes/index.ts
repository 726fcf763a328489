import { Type } from '@sinclair/typebox'
import { Base64Secret, CommaList, definePlugin, Duration, maybe, type PluginContext, Settings } from '#kernel'
import { runnerHash } from '#contracts/ids'
import { limitErrors } from '#contracts/limits'
import { objectErrors } from '#contracts/object-store'
import type { RunnerSession } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import { SandboxProviders, SandboxTenants } from '#contracts/sandbox'
import { PlatformTools } from '#contracts/tools'
import { vfsErrors } from '#contracts/vfs'
import { VfsManager } from '#contracts/vfs-manager'
import { SandboxWorkers, WorkerHub, workerTokenErrors } from '#contracts/workers'
import { accessErrors } from '#contracts/access-errors'
import { createClientAddress, followTls, SessionRequests, trustedProxies, WrongKeys, wrongKeysPerMinute } from '#kit'
import { maxEventUploadBytes, maxEventUploadMs } from '#contracts/wire/worker'
import { type ModelServer, ModelServers, modelServers } from './egress/model-servers.ts'
import { createHub } from './hub/hub.ts'
import { CountedMemory } from './hub/state.ts'
import { createWorkerTokens } from './hub/tokens.ts'
import { createLauncher } from './launcher.ts'
import { createMetrics } from './metrics.ts'
import { createReaper } from './reaper.ts'
import { createSandboxWorkers } from './service.ts'
import { createWorkerTable } from './session-worker.ts'
import { createSubstrates } from './substrates.ts'
import { createSandboxTools } from './tools.ts'
import { createUpkeep } from './upkeep.ts'
import { createWarmPools, WarmPoolList } from './warm-pools.ts'
import { Workspaces } from './workspaces.ts'
import { sandboxErrors } from './errors.ts'
import { hostRoutes } from './egress/host-routes.ts'
import { createEgress } from './egress/routes.ts'
import { EgressRuns } from './egress/run-egress.ts'
import { createNewestOfAll, createWorkerAuth, type WorkerAuthOptions } from './hub/auth.ts'
import { eventRoutes, pollRoutes, stateRoutes, toolRoutes } from './hub/routes.ts'
import { fileRoutes, type FilesOf } from './file.routes.ts'

const url = (description: string) => Type.Optional(Type.String({ pattern: '^https?://[^\\s]+$', description }))

/**
 * The sandboxes of sessions. They are launched, paused, resumed, replaced and ended as their sessions need them. The plugin also serves the workers
 * in sandboxes, which poll and call back, and provides the tools that act there.
 */
export default definePlugin({
  name: 'sandboxes',
  config: Settings({
    baseUrl: url('The same as at the runner: by its hash a restarted runner finds its former sandboxes.'),
    workerBaseUrl: url(
      "Where sandboxes reach this runner; the URL of the listener 'workers' by default, or else of 'runner'.",
    ),
    providers: CommaList('Names of the sandbox providers to offer; all that this role has when empty.'),
    default: CommaList(
      'Provider of profiles that name none; of several names, the first that is available. With a single provider it is that one.',
    ),
    idlePause: Duration('5m', 'An idle sandbox is paused after this. It keeps its files and its conversation.'),
    idleDestroy: Duration(
      '24h',
      'A sandbox that was unused for this long is ended. The conversation is kept, the files are not.',
    ),
    countFiles: Duration(
      '5s',
      "How often the files of a tenant's sandboxes are counted, if their provider can measure them; less often if counting takes long.",
    ),
    connectTimeout: Duration('60s', 'How long the worker of a new or resumed sandbox may take to call the runner.'),
    warm: WarmPoolList,
    logLevel: Type.String({ default: 'warn', description: 'Log level of the workers.' }),
    lostAfter: Duration(
      '15s',
      'A worker with a run counts as lost when it has neither polled nor sent anything for this long.',
    ),
    signingKey: Type.Optional(
      Settings({
        current: Type.Optional(
          Base64Secret('Signs and verifies the tokens of workers. Without it no sandbox worker can be started.'),
        ),
        previous: Type.Optional(Base64Secret('Still verifies while keys are being rotated.')),
      }),
    ),
    wrongKeysPerMinute,
    trustedProxies,
    models: Type.Optional(ModelServers),
    egressCa: Type.Optional(
      Type.String({
        description:
          'Authorities that sign the certificates of your own hosts, beside those of the system, for sandboxes with `egress`. A path, or PEM itself.',
      }),
    ),
  }),
  errors: [sandboxErrors, workerTokenErrors, accessErrors, limitErrors, runnerErrors, vfsErrors, objectErrors],
  requires: { providers: SandboxProviders, tenants: SandboxTenants, vfs: maybe(VfsManager) },
  provides: { workers: SandboxWorkers, hub: WorkerHub, tools: PlatformTools },
  async setup(ctx) {
    const { config, deps, log } = ctx
    const { signingKey = {}, models = {} } = config
    if (signingKey.previous && !signingKey.current) {
      throw new Error(
        'there is a previous signing key for worker tokens but no current one; set AGENT_ORC_WORKER_SIGNING_KEY_CURRENT',
      )
    }
    const memory = new CountedMemory()
    const hub = createHub(createWorkerTokens(signingKey.current, signingKey.previous), config.lostAfter, memory)
    ctx.onStop(async () => hub.close())
    const servers = modelServers(models)
    const filesOf: FilesOf = ({ tenantId, sessionId }) => {
      const session = table.find(tenantId, sessionId)?.session
      return session && deps.vfs?.of(session)
    }
    const clientOf = createClientAddress(config.trustedProxies)
    const wrongKeys = new WrongKeys(config.wrongKeysPerMinute)
    const served = deps.providers.size > 0
    mountCallbacks(ctx, { hub, served, clientOf, wrongKeys, models: servers, filesOf })
    const ca = followTls({ ca: config.egressCa }, log)
    const egress = new EgressRuns({ ca: () => ca?.files.ca })
    ctx.onStop(async () => {
      ca?.close()
      egress.close()
    })

    const listener = ctx.listeners.includes('workers') ? 'workers' : 'runner'
    const addresses = {
      owner: () => runnerHash(config.baseUrl ?? ctx.urlOf('runner')),
      runnerUrl: () => config.workerBaseUrl ?? ctx.urlOf(listener),
    }
    const { providers: configured, tenants } = deps
    const substrates = createSubstrates({ configured, tenants, offered: config.providers, byDefault: config.default })
    const stopping = new AbortController()
    const reaper = createReaper(log)
    const { logLevel, connectTimeout: connectMs } = config
    const launcher = createLauncher({ hub, substrates, reaper, ...addresses, logLevel, connectMs })
    const pools = createWarmPools(config.warm, { launcher, reaper, log, stopping: stopping.signal })
    const admitFiles = (session: RunnerSession): void => workspaces.admit(session)
    const table = createWorkerTable({ launcher, reaper, pools, admitFiles })
    const workspaces = new Workspaces(table, config.countFiles, log)
    const metrics = createMetrics(ctx.metrics, table, pools)
    // Sandboxes can reach only this listener.
    ctx.routes(listener, hostRoutes({ runs: egress, counts: metrics, log }))
    const idle = { pauseMs: config.idlePause, destroyMs: config.idleDestroy }
    const upkeep = createUpkeep({ table, workspaces, pools, reaper, substrates, idle, ...addresses, stopping, log })
    ctx.onStop(upkeep.stop)
    ctx.onStart(async () => upkeep.start())
    return {
      workers: createSandboxWorkers({
        table,
        workspaces,
        launcher,
        pools,
        substrates,
        servers,
        egress,
        metrics,
        memory,
        vfs: deps.vfs,
        log,
      }),
      hub,
      tools: createSandboxTools(),
    }
  },
})

interface CallbackOptions extends WorkerAuthOptions {
  /** The model servers that workers reach through this runner, by the name of the provider. */
  readonly models: ReadonlyMap<string, ModelServer>
  readonly filesOf: FilesOf
}

/** Mounts the routes that workers call: for commands, events, state, tool results and egress. Specification 4.22. */
export function mountCallbacks(
  { routes, onStop }: Pick<PluginContext, 'routes' | 'onStop'>,
  { models, filesOf, ...options }: CallbackOptions,
): void {
  const auth = createWorkerAuth(options)
  const egress = createEgress(auth, models)
  onStop(egress.close)
  const newest = createNewestOfAll()
  const results = new SessionRequests()
  const limits = { maxBytes: maxEventUploadBytes, maxMs: maxEventUploadMs }
  // Workers reach only the second listener: it has these routes and the MCP endpoints of their sessions, nothing else of the runner.
  for (const listener of ['runner', 'workers']) {
    routes(listener, async (app) => {
      const closing = new AbortController()
      app.addHook('preClose', async () => closing.abort())
      auth.protect(app)
      pollRoutes(app, auth, newest, closing.signal)
      toolRoutes(app, auth, results)
      await app.register(eventRoutes(auth, limits, closing.signal))
      await app.register(stateRoutes(auth, newest))
    })
    routes(listener, egress.routes)
    routes(listener, fileRoutes(auth, filesOf))
  }
}
