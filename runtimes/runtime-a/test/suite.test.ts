import { type ModelRequestBody, startToolServer, testRuntime } from '#testing'
import { model, onStandIn, saidIn, withVendor } from './support.ts'

// A model that repeats what it was told in the whole conversation; `hang` and `tool` ask for what their names say.
const answer = (body: ModelRequestBody) => {
  const said = saidIn(body)
  if (said.at(-1) === 'hang') return { text: 'one two three four', delayMs: 20, hangAfter: 2 }
  const results = body.messages.some(({ content }) => JSON.stringify(content).includes('"tool_result"'))
  if (said.at(-1) === 'tool' && !results) {
    const call = (id: string, name: string) => ({ id, name: `mcp__runner__${name}`, arguments: {} })
    return { toolCalls: [call('toolu_a', 'echo'), call('toolu_b', 'fail')] }
  }
  return { text: `You said: ${said.join(', ')}` }
}

withVendor(() =>
  testRuntime(
    'runtime_a',
    async (t) => {
      const { runtime } = await onStandIn(t, { reply: answer })
      const tools = await startToolServer(t, {
        echo: async () => ({ text: 'echo' }),
        fail: async () => ({ text: 'no', isError: true }),
      })
      return {
        ...runtime,
        run: (envelope, signal) =>
          runtime.run(envelope.prompt === 'tool' ? { ...envelope, sessionMcpUrl: tools.url } : envelope, signal),
      }
    },
    {
      say: (word) => word,
      hang: 'hang',
      tool: 'tool',
      memory: { tell: (word) => word, ask: 'what was it?' },
      envelope: model,
    },
  ),
)
