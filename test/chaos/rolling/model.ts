import { type ModelReply, type ModelRequestBody, type ModelServer, startModelServer } from '#testing'

/** Milliseconds between two deltas: about as a model writes, and so slow that two cores carry 20 chats a second. */
export const wordMs = 250

/** Says as many words as the last message of the user asks for, and then how many messages of the user it was shown. */
export const startModel = (): Promise<ModelServer> =>
  startModelServer(undefined, { record: false, reply: (body) => replyTo(body) })

export const questionOf = (words: number, tag: string): string => `words=${words} #${tag}`

const wordsOf = (words: number, tag: string): string => Array.from({ length: words }, (_, i) => `${tag}-${i}`).join(' ')

function replyTo({ messages }: ModelRequestBody): ModelReply {
  const asked = messages.filter(({ role }) => role === 'user')
  const question = JSON.stringify(asked.at(-1)?.content)
  const words = Number(/words=(\d+)/.exec(question)?.[1] ?? 1)
  const tag = /#(\w+)/.exec(question)?.[1] ?? 'none'
  return { text: `${wordsOf(words, tag)} turn${asked.length}`, delayMs: wordMs }
}

/** How many messages of the user stood behind an answer; undefined when it is not the whole answer to this question. */
export function turnOf(answer: string, words: number, tag: string): number | undefined {
  const begin = `${wordsOf(words, tag)} turn`
  return answer.startsWith(begin) && /^\d+$/.test(answer.slice(begin.length))
    ? Number(answer.slice(begin.length))
    : undefined
}
