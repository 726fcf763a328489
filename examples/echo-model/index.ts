import { errorTable } from 'agent-orc/kernel'
import { defineModelProvider } from 'agent-orc/kit/models'

const errors = errorTable('echo', {
  unknownModel: { status: 400, message: 'The provider has one model: parrot.' },
})

/** Says the last message back. A profile uses it with `model: echo/parrot`. Most providers wrap a package of the AI SDK instead. */
export default defineModelProvider({
  name: 'echo',
  errors,
  async create() {
    return {
      contract: 'model/1',
      model(modelId) {
        if (modelId !== 'parrot') throw errors.unknownModel()
        return parrot
      },
    }
  },
})

type Model = ReturnType<import('agent-orc/contracts/model').ModelProvider['model']>
type Part = Awaited<ReturnType<Model['doStream']>>['stream'] extends ReadableStream<infer P> ? P : never

const parrot: Model = {
  specificationVersion: 'v4',
  provider: 'echo',
  modelId: 'parrot',
  supportedUrls: {},
  async doStream({ prompt, abortSignal }) {
    const parts = answer(lastTextOf(prompt))
    return {
      stream: new ReadableStream<Part>({
        // Pulled, not pushed: a slow reader slows the model down, and an aborted one ends it.
        pull(controller) {
          if (abortSignal?.aborted) return controller.error(abortSignal.reason)
          const { done, value } = parts.next()
          if (done) controller.close()
          else controller.enqueue(value)
        },
      }),
    }
  },
  doGenerate: () => Promise.reject(new Error('Agent Orc only streams.')),
}

function* answer(text: string): Generator<Part> {
  const words = text.match(/\S+\s*/g) ?? []
  yield { type: 'text-start', id: '1' }
  for (const delta of words) yield { type: 'text-delta', id: '1', delta }
  yield { type: 'text-end', id: '1' }
  const counted = { total: words.length, noCache: undefined, cacheRead: undefined, cacheWrite: undefined }
  const usage = {
    inputTokens: counted,
    outputTokens: { total: words.length, text: words.length, reasoning: undefined },
  }
  yield { type: 'finish', finishReason: { unified: 'stop', raw: undefined }, usage }
}

function lastTextOf(prompt: Parameters<Model['doStream']>[0]['prompt']): string {
  const last = prompt.findLast(({ role }) => role === 'user')
  if (last?.role !== 'user') return ''
  return last.content.map((part) => (part.type === 'text' ? part.text : '')).join('')
}
