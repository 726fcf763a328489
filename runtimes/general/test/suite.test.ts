import { fake, testRuntime, runtimeOf, startModelServer, startToolServer, type ModelRequestBody } from '#testing'
import { Models } from '#contracts/model'
import general from '../index.ts'
import { model, standIn } from './support.ts'

// A model that repeats what it was told in the whole conversation; `hang` and `tool` ask for what their names say.
const answer = (body: ModelRequestBody) => {
  const last = body.messages.at(-1)!
  const said = body.messages.filter(({ role }) => role === 'user').map(({ content }) => String(content))
  if (last.content === 'hang') return { hangAfter: 2 }
  if (last.content === 'tool') {
    return {
      toolCalls: [
        { id: 'a', name: 'echo', arguments: {} },
        { id: 'b', name: 'fail', arguments: {} },
      ],
    }
  }
  return { text: `You said: ${said.join(', ')}` }
}

testRuntime(
  'general',
  async (t) => {
    const server = await startModelServer(t, { reply: answer })
    const tools = await startToolServer(t, {
      echo: async () => ({ text: 'echo' }),
      fail: async () => ({ text: 'no', isError: true }),
    })
    const runtime = await runtimeOf(t, 'general', [general, fake(Models, { 'stand-in': standIn(t, server.url) })])
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
    replays: true,
    memory: { tell: (word) => word, ask: 'what was it?' },
    envelope: model,
  },
)
