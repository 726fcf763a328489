// Run by `agent-orc conformance sidecar`: the suite of every bundled runtime, at the URL of a running sidecar.
import { after } from 'node:test'
import { startToolServer, testRuntime } from '#testing'
import { environment } from '../../kernel/config.ts'
import type { SidecarCheck } from '../conformance.ts'
import { runnerKeyVariable, runnerSigner } from '../signed-requests.ts'

const check = JSON.parse(process.argv[2]!) as SidecarCheck
const filled = (template: string) => (word: string) => template.replaceAll('{word}', word)

const sign = runnerSigner(environment()[runnerKeyVariable])
const stops: (() => Promise<void>)[] = []
const tools = check.tool
  ? await startToolServer(
      { after: (fn) => void stops.push(fn) },
      {
        echo: async (input) => ({ text: JSON.stringify(input) }),
        fail: async () => ({ text: 'This tool always fails.', isError: true }),
      },
      check.mcpHost,
    )
  : undefined
after(async () => {
  for (const stop of stops) await stop()
})

testRuntime(check.runtime, () => check.url.replace(/\/+$/, ''), {
  say: filled(check.say),
  ...(sign ? { sign } : {}),
  ...(check.hang === undefined ? {} : { hang: check.hang }),
  ...(check.tool === undefined ? {} : { tool: check.tool, replays: check.replays }),
  ...(check.state ? { memory: { tell: filled(check.tell), ask: check.ask } } : {}),
  envelope: {
    ...(tools ? { sessionMcpUrl: tools.url } : {}),
    ...(check.model === undefined ? {} : { profile: { model: check.model, tools: tools ? ['echo', 'fail'] : [] } }),
  },
})
