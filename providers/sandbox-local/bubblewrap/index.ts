import { Type } from '@sinclair/typebox'
import { CommaList, Settings } from '#kernel'
import { defineSandboxProvider } from '#contracts/sandbox'
import { Templates } from '../command.ts'
import { openHome } from '../home.ts'
import { createProvider } from '../provider.ts'
import { CannotError, prepareMachine } from './machine.ts'
import { createStarter } from './start.ts'

const Megabytes = (fallback: number, description: string) =>
  Type.Integer({ minimum: 1, maximum: 1_048_576, default: fallback, description })

/** Workers in sandboxes of this machine: no network but the runner, a file system of their own, limits. */
export default defineSandboxProvider({
  name: 'bubblewrap',
  config: Settings({
    dir: Type.Optional(
      Type.String({
        description: 'A folder for the workspaces of sessions; the temporary one of the system when empty.',
      }),
    ),
    templates: Templates,
    read: CommaList('Further paths of this machine that workers may read, e.g. of plugins of your own.'),
    cgroup: Type.Optional(
      Type.String({
        description:
          'A cgroup v2 that is delegated to this runner, e.g. /sys/fs/cgroup/system.slice/runner.service. Bounds memory exactly, and cpus.',
      }),
    ),
    memoryMb: Megabytes(1024, 'Memory of a sandbox whose profile sets none.'),
    pids: Type.Integer({ minimum: 1, default: 256, description: 'Processes and threads, likewise.' }),
    diskMb: Megabytes(256, 'Size of /tmp, likewise. The workspace is bounded by the volume that its folder is on.'),
    mostMemoryMb: Megabytes(4096, 'What a profile may ask for.'),
    mostPids: Type.Integer({ minimum: 1, default: 2048, description: 'Likewise.' }),
    mostDiskMb: Megabytes(1024, 'Likewise. It is memory, too.'),
  }),
  async create({ config, log, onStop }) {
    const { dir, templates, read, cgroup, mostMemoryMb, mostPids, mostDiskMb, ...byDefault } = config
    const limits = { byDefault, most: { memoryMb: mostMemoryMb, pids: mostPids, diskMb: mostDiskMb } }
    if (process.platform !== 'linux') return undefined
    const home = await openHome({ dir: dir || undefined, passable: process.getuid?.() === 0 })
    try {
      const machine = await prepareMachine(home, { cgroup: cgroup || undefined, read })
      const provider = createProvider(home, createStarter({ machine, templates, limits, log }))
      onStop(() => provider.stop())
      return provider
    } catch (error) {
      await home.close()
      if (!(error instanceof CannotError)) throw error
      log.info(`the sandbox provider 'bubblewrap' is not offered: ${error.message}`)
      return undefined
    }
  },
})
