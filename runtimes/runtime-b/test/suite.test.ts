import { test } from 'node:test'
import {
  runtimeOf,
  startModelServer,
  startToolServer,
  testRuntime,
  type ModelReply,
  type ModelRequestBody,
} from '#testing'
import runtimeB from '../index.ts'
import { asked, call, conversation, skip } from './support.ts'

// A model that repeats what it was told in the whole conversation; `hang` and `tool` ask for what their names say.
const answer = (body: ModelRequestBody): ModelReply => {
  const said = conversation({ body } as never).filter((line) => line.startsWith('user: '))
  if (asked(body) === 'user: hang') return { text: 'one two three', hangAfter: 2 }
  if (asked(body) === 'user: tool') return { toolCalls: [call('echo', {}, 'a'), call('fail', {}, 'b')] }
  return { text: `You said: ${said.map((line) => line.slice(6)).join(', ')}` }
}

if (skip) test('runtime_b: the suite', { skip }, () => {})
else {
  testRuntime(
    'runtime_b',
    async (t) => {
      const { url } = await startModelServer(t, { reply: answer })
      const tools = await startToolServer(t, {
        echo: async () => ({ text: 'echo' }),
        fail: async () => ({ text: 'no', isError: true }),
      })
      const entry = { name: 'runtime-b', plugin: runtimeB, config: { baseUrl: url } }
      const runtime = await runtimeOf(t, 'runtime_b', [entry])
      return {
        ...runtime,
        run: (envelope, signal) =>
          runtime.run(
            envelope.prompt === 'tool'
              ? { ...envelope, sessionMcpUrl: tools.url, profile: { ...envelope.profile, tools: ['tool'] } }
              : envelope,
            signal,
          ),
      }
    },
    {
      say: (word) => word,
      hang: 'hang',
      tool: 'tool',
      memory: { tell: (word) => word, ask: 'what was it?' },
      envelope: { profile: { model: 'openai/stand-in' } },
    },
  )
}
