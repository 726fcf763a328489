import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { LocalSidecars } from '#contracts/sidecar'
import { WorkerIdentity, WorkerTools } from '#contracts/workers'
import { createDisk } from './disk.ts'
import { createWorker } from './worker.ts'

/** The sidecar of one session that nobody calls: it asks its runner for work. Specification 4.23, rule 3. */
export default definePlugin({
  name: 'worker-client',
  config: Settings({
    stateDir: Type.Optional(
      Type.String({ description: 'A folder for a copy of the conversation; without it the runner has the only one.' }),
    ),
    drain: Duration('5s', 'A stopping worker lets its run end for this long.'),
  }),
  requires: { identity: WorkerIdentity, links: LocalSidecars, tools: maybe(WorkerTools) },
  async setup(ctx) {
    const link = ctx.deps.links.get('local')
    if (!link) throw new Error('this role executes no runs: add run-host')
    const { stateDir, drain } = ctx.config
    const worker = createWorker({
      identity: ctx.deps.identity,
      link,
      tools: ctx.deps.tools,
      disk: stateDir === undefined ? undefined : createDisk(stateDir),
      log: ctx.log,
      drainMs: drain,
      onShutdown: ctx.end,
      onRefused: ctx.fail,
    })
    ctx.onStart(async () => worker.start())
    ctx.onStop(() => worker.stop())
    return {}
  },
})
