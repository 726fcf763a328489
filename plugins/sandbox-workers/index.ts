import { Type } from '@sinclair/typebox'
import { CommaList, definePlugin, Duration, Settings } from '#kernel'
import { runnerHash } from '#contracts/ids'
import { SandboxProviders } from '#contracts/sandbox'
import { SandboxWorkers, WorkerHub } from '#contracts/workers'
import { createSandboxManager } from './service.ts'
import { createSubstrates } from './substrates.ts'
import { WarmPoolList } from './warm-pools.ts'

const url = (description: string) => Type.Optional(Type.String({ pattern: '^https?://[^\\s]+$', description }))

/** Sandboxes of sessions: launched, put to sleep, woken, replaced and ended as their sessions need it. */
export default definePlugin({
  name: 'sandbox-workers',
  config: Settings({
    baseUrl: url("As runner-core's: under its hash a restarted runner finds the sandboxes that it left behind."),
    workerBaseUrl: url(
      "Where sandboxes reach this runner; the URL of the listener 'workers' unless given, or else of 'runner'.",
    ),
    providers: CommaList('Names of the sandbox providers to offer; all that this role has when empty.'),
    default: CommaList(
      'Provider of profiles that name none; of several, the first that is there. With one provider it is that one.',
    ),
    idlePause: Duration('5m', 'An idle sandbox is put to sleep after this. It keeps its files and its conversation.'),
    idleDestroy: Duration('24h', 'One that nobody used for so long is ended. The conversation is kept, files are not.'),
    connectTimeout: Duration('60s', 'How long the worker of a new or woken sandbox may take to call the runner.'),
    warm: WarmPoolList,
    logLevel: Type.String({ default: 'warn', description: 'Of the workers.' }),
  }),
  requires: { hub: WorkerHub, providers: SandboxProviders },
  provides: { workers: SandboxWorkers },
  async setup(ctx) {
    const { config, deps, log } = ctx
    const listener = ctx.listeners.includes('workers') ? 'workers' : 'runner'
    const manager = createSandboxManager({
      hub: deps.hub,
      substrates: createSubstrates({
        configured: deps.providers,
        offered: config.providers,
        byDefault: config.default,
      }),
      owner: () => runnerHash(config.baseUrl ?? ctx.urlOf('runner')),
      runnerUrl: () => config.workerBaseUrl ?? ctx.urlOf(listener),
      logLevel: config.logLevel,
      idle: { pauseMs: config.idlePause, destroyMs: config.idleDestroy },
      connectMs: config.connectTimeout,
      warm: config.warm,
      registry: ctx.metrics,
      log,
    })
    ctx.onStop(manager.stop)
    ctx.onStart(async () => manager.start())
    return { workers: manager.workers }
  },
})
