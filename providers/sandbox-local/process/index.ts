import { Type } from '@sinclair/typebox'
import { Settings } from '#kernel'
import { defineSandboxProvider } from '#contracts/sandbox'
import { Templates } from '../command.ts'
import { openHome } from '../home.ts'
import { createProvider } from '../provider.ts'
import { canLimit, createStarter } from './start.ts'

/** Workers as plain child processes of the runner: for development. It isolates nothing, so it has to be allowed. */
export default defineSandboxProvider({
  name: 'process',
  config: Settings({
    allow: Type.Boolean({
      default: false,
      description: 'Workers then run as the user of the runner, with its files and its network.',
    }),
    dir: Type.Optional(
      Type.String({
        description: 'A folder for the workspaces of sessions; the temporary one of the system when empty.',
      }),
    ),
    templates: Templates,
  }),
  async create({ config, log, onStop }) {
    if (!config.allow) return undefined
    const home = await openHome({ dir: config.dir || undefined })
    const start = createStarter({ templates: config.templates, log, prlimit: await canLimit() })
    const provider = createProvider(home, start)
    onStop(() => provider.stop())
    return provider
  },
})
