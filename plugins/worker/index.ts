import { join } from 'node:path'
import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, Settings } from '#kernel'
import { LocalSidecars } from '#contracts/sidecar'
import { vfsFolder } from '#contracts/wire/worker'
import { createDisk } from './disk.ts'
import { WorkerIdentity } from './identity/identity.ts'
import { createTools } from './tools/tools.ts'
import { createWorker } from './worker.ts'
import { workerErrors } from './errors.ts'

/** The sidecar of one session, which nobody can call: it polls its runner for work. Specification 4.23, rule 3. */
export default definePlugin({
  name: 'worker',
  config: Settings({
    stateDir: Type.Optional(
      Type.String({ description: 'A folder for a copy of the conversation; without it the runner has the only one.' }),
    ),
    drain: Duration('5s', 'A stopping worker lets its run end for this long.'),
    workspace: Type.String({ minLength: 1, description: "The agent's folder; made when it is not there." }),
    path: Type.String({ default: '/usr/local/bin:/usr/bin:/bin', description: 'PATH of what the tools start.' }),
    lang: Type.String({ default: 'C.UTF-8', description: 'LANG of what the tools start.' }),
    tmpDir: Type.String({ default: '/tmp', description: 'TMPDIR of what the tools start.' }),
  }),
  errors: workerErrors,
  requires: { identity: WorkerIdentity, links: LocalSidecars },
  async setup(ctx) {
    const link = ctx.deps.links.get('local')
    if (!link) throw new Error('this role executes no runs: add run-host')
    const { stateDir, drain } = ctx.config
    const tools = await createTools(ctx.config, ctx.log)
    const worker = createWorker({
      identity: ctx.deps.identity,
      link,
      tools,
      places: {
        root: join(tools.workspace, vfsFolder),
        memory: stateDir === undefined ? undefined : () => join(stateDir, `${ctx.deps.identity.sessionId}.vfs`),
      },
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
