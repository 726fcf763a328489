import { Type } from '@sinclair/typebox'
import { Counter } from 'prom-client'
import { CommaList, definePlugin, Duration, Settings } from '#kernel'
import { type PlatformTool, PlatformTools, Toolkit } from '#contracts/tools'
import { createCalculate } from './builtin/calculate.ts'
import { currentTime } from './builtin/current-time.ts'
import { createHttpFetch } from './builtin/http-fetch.ts'
import { createSearchDocs } from './builtin/search-docs.ts'
import { createDelegate, WaitingDelegations } from './delegation.ts'
import { createToolkit } from './toolkit.ts'
import { toolErrors } from './errors.ts'

/** The tools of a runner, its own and those of other plugins: input is checked, time and output are bounded, failures become plain sentences. */
export default definePlugin({
  name: 'tools',
  config: Settings({
    timeout: Duration('30s', 'Longest a tool may take.'),
    docs: Type.Optional(Type.String({ description: 'Folder with README.md and docs/; the one shipped unless given.' })),
    httpFetchTimeout: Duration('10s'),
    httpFetchHosts: CommaList(
      'Hosts that `http_fetch` may read, `.example.com` with its subdomains; any public one unless given.',
    ),
    delegationDepth: Type.Integer({
      default: 3,
      minimum: 0,
      maximum: 20,
      description: 'How many delegations may lead to one another; 0 allows none.',
    }),
  }),
  errors: toolErrors,
  requires: { added: PlatformTools },
  provides: { toolkit: Toolkit },
  async setup(ctx) {
    const { config, deps, log } = ctx
    const calls = new Counter({
      name: 'runner_tool_calls_total',
      help: 'Platform tool calls by tool and outcome.',
      labelNames: ['tool', 'outcome'],
      registers: [ctx.metrics],
    })
    const builtin = createBuiltinTools(config)
    ctx.onStop(() => builtin.close())
    const delegations = new WaitingDelegations()
    const delegate = createDelegate(delegations, config.delegationDepth)
    const tools = new Map<string, PlatformTool>([...Object.entries(builtin.tools), ['delegate', delegate]])
    for (const [name, tool] of deps.added) {
      if (tools.has(name)) throw new Error(`a plugin adds a tool '${name}', but there already is one of this name`)
      tools.set(name, tool)
    }
    for (const tool of tools.values()) if (tool.load) ctx.loads(() => tool.load!())
    const count = (tool: string, outcome: string): void => calls.inc({ tool, outcome })
    return { toolkit: createToolkit(tools, { timeoutMs: config.timeout, delegations, log, count }) }
  },
})

interface BuiltinToolSettings {
  /** A folder with README.md and docs/; the one shipped unless given. */
  readonly docs?: string | undefined
  readonly httpFetchTimeout: number
  /** Empty: any public host. */
  readonly httpFetchHosts: readonly string[]
}

/** The tools that every runner has, by name. */
export function createBuiltinTools({ docs, httpFetchTimeout, httpFetchHosts }: BuiltinToolSettings) {
  const httpFetch = createHttpFetch({ timeoutMs: httpFetchTimeout, allowHosts: httpFetchHosts })
  const all = [createCalculate(), currentTime, createSearchDocs(docs), httpFetch.tool]
  const tools: Readonly<Record<string, PlatformTool>> = Object.fromEntries(all.map((tool) => [tool.name, tool]))
  return { tools, close: httpFetch.close }
}
