import { type ModelReply, type ModelRequestBody, type ModelServer, startModelServer } from '#testing'

/** A model that does what the last message of the user asks for: `words=12 delay=30 tool`, or `pay`. */
export const startModel = (): Promise<ModelServer> =>
  startModelServer(undefined, { record: false, reply: (body) => replyTo(body) })

function replyTo({ messages }: ModelRequestBody): ModelReply {
  const last = messages.at(-1)
  const question = String(messages.findLast(({ role }) => role === 'user')?.content ?? '')
  if (question.includes('tool') && last?.role !== 'tool') {
    return { toolCalls: [{ name: 'calculate', arguments: { expression: '6 * 7' } }] }
  }
  if (question.includes('pay') && last?.role !== 'tool')
    return { toolCalls: [{ name: 'pay', arguments: { amount: 5 } }] }
  const words = Number(/words=(\d+)/.exec(question)?.[1] ?? 5)
  const delayMs = Number(/delay=(\d+)/.exec(question)?.[1] ?? 0)
  // Each answer is different, so that a delta in the wrong place is noticed.
  const tag = /#(\w+)/.exec(question)?.[1] ?? 'none'
  const text = Array.from({ length: words }, (_, i) => `${tag}-${i}`).join(' ')
  return { text, delayMs }
}
