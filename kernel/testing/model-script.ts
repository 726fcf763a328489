import type { TestContext } from 'node:test'
import type { ModelScript } from './model-suite.ts'
import type { ModelReply, ModelRequestBody } from './model-reply.ts'
import { type ModelServer, startModelServer } from './model-server.ts'

/** Answers what `testModelProvider` asks, for providers that speak to a model server. */
const scripted = ({ messages }: ModelRequestBody): ModelReply => {
  const asked = JSON.stringify(messages.find(({ role }) => role === 'user')?.content)
  if (asked.includes('tool please')) {
    const answered = messages.length > 1
    return answered
      ? { text: 'It is blue.' }
      : { toolCalls: [{ id: 'call_1', name: 'look', arguments: { at: 'sky' } }] }
  }
  if (asked.includes('wait')) return { text: 'one two three', hangAfter: 1 }
  if (asked.includes('fail')) return { text: 'one two', inBandError: 'overloaded' }
  return { text: /say (\w+)/.exec(asked)?.[1] ?? 'hello' }
}

/** The model server of one test and the script that goes with it. */
export async function startScriptedModels(t: Pick<TestContext, 'after'>): Promise<ModelServer> {
  return startModelServer(t, { reply: scripted })
}

export const modelScript: ModelScript = {
  model: 'stand-in',
  say: (word) => `say ${word}`,
  tool: 'tool please',
  hang: 'wait',
  failure: 'fail',
}
