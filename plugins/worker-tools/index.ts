import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { WorkerTools } from '#contracts/workers'
import { createProcesses } from './processes.ts'
import { createTools } from './tools.ts'
import { createWorkspace } from './workspace.ts'

/** Tools that act on the machine of a worker, inside one folder: a shell, files and scripts. */
export default definePlugin({
  name: 'worker-tools',
  config: Settings({
    workspace: Type.String({ minLength: 1, description: "The agent's folder; made when it is not there." }),
    path: Type.String({ default: '/usr/local/bin:/usr/bin:/bin', description: 'PATH of what the tools start.' }),
    lang: Type.String({ default: 'C.UTF-8', description: 'LANG of what the tools start.' }),
    tmpDir: Type.String({ default: '/tmp', description: 'TMPDIR of what the tools start.' }),
  }),
  provides: { tools: WorkerTools },
  async setup(ctx) {
    const { path, lang, tmpDir } = ctx.config
    const workspace = await createWorkspace(ctx.config.workspace)
    // All of it: a tool must not see the worker's token.
    const env = { PATH: path, HOME: workspace.root, LANG: lang, TMPDIR: tmpDir }
    const processes = createProcesses(env)
    ctx.onStop(async () => processes.stop())
    return { tools: createTools({ workspace, processes, log: ctx.log }) }
  },
})
