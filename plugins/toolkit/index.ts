import { Counter } from 'prom-client'
import { definePlugin, Duration, Settings } from '#kernel'
import { PlatformTools, Toolkit } from '#contracts/tools'
import { createToolkit } from './toolkit.ts'

/** The platform's tools behind one door: input checked, time and output bounded, failures told in plain sentences. */
export default definePlugin({
  name: 'toolkit',
  config: Settings({ timeout: Duration('30s', 'Longest a tool may take.') }),
  requires: { tools: PlatformTools },
  provides: { toolkit: Toolkit },
  async setup(ctx) {
    const calls = new Counter({
      name: 'runner_tool_calls_total',
      help: 'Platform tool calls by tool and outcome.',
      labelNames: ['tool', 'outcome'],
      registers: [ctx.metrics],
    })
    const toolkit = createToolkit(ctx.deps.tools, {
      timeoutMs: ctx.config.timeout,
      log: ctx.log,
      count: (tool, outcome) => calls.inc({ tool, outcome }),
    })
    return { toolkit }
  },
})
