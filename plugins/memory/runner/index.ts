import { definePlugin } from '#kernel'
import { type PlatformTool, PlatformTools, type ToolSpec } from '#contracts/tools'
import { memoryTools } from '../tool-specs.ts'

/** The runner's part of memory: the tools of agents. A runner has no database, so each call is executed by the conductor of its run. */
export default definePlugin({
  name: 'memory-tools',
  provides: { tools: PlatformTools },
  setup: async () => ({ tools: Object.fromEntries(memoryTools.map((spec) => [spec.name, toolOf(spec)])) }),
})

const toolOf = (spec: ToolSpec): PlatformTool => ({
  ...spec,
  async execute(input, { askConductor }) {
    return askConductor?.(input) ?? { ok: false, content: 'Memories are there in runs only.' }
  },
})
